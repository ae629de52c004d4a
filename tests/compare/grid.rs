//! The connections that are made under every policy.

use std::net::SocketAddr;

use support::protocol::{APP, Dial, Identity, PROXY, ROOT};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Addresses of one family, by role.
struct Addresses {
    own: &'static str,
    second: &'static str,
    loopback: &'static str,
    own_self: &'static str,
    service: &'static str,
    /// Everything that is dialled.
    all: &'static [&'static str],
}

const V4: Addresses = Addresses {
    own: "10.77.0.2",
    second: "10.78.0.2",
    loopback: "127.0.0.1",
    own_self: "127.0.0.6",
    service: "10.109.118.31",
    all: &[
        "10.109.118.31",
        "10.77.0.254",
        "10.77.0.2",
        "10.78.0.2",
        "127.0.0.1",
        "127.0.0.2",
        "127.0.0.6",
        "0.0.0.0",
        "10.201.0.1",
        "10.202.0.1",
        "10.203.0.1",
        "203.0.113.1",
        "224.0.0.1",
        "255.255.255.255",
        "10.77.255.255",
    ],
};

const V6: Addresses = Addresses {
    own: "fd77::2",
    second: "fd78::2",
    loopback: "::1",
    own_self: "::6",
    service: "fd99::31",
    all: &[
        "fd99::31",
        "fd77::fe",
        "fd77::2",
        "fd78::2",
        "::1",
        "::6",
        "::",
        "fdb1::1",
        "fdb2::1",
        "fdb3::1",
        "2001:db8::1",
        "ff02::1",
    ],
};

/// Ports that mean something to some rule, and one that means nothing.
const PORTS: [u16; 10] = [9, 22, 53, 80, 15001, 15006, 15008, 15020, 15021, 15090];

/// Long enough for an answer within the machine.
const PATIENCE_MS: u64 = 250;

/// A connection and who makes it.
#[derive(Clone, Debug)]
pub struct Case {
    /// From the pod (or to it).
    pub outbound: bool,
    /// What is done.
    pub dial: Dial,
    /// In words.
    pub name: String,
}

/// All connections of a family.
pub fn cases(family: Family) -> Vec<Case> {
    let addresses = match family {
        Family::V4 => &V4,
        Family::V6 => &V6,
    };
    let mut cases = Vec::new();
    let mut add = |who: &str,
                   creator: &Identity,
                   connector: Option<&Identity>,
                   source: Option<&str>,
                   to: &str,
                   port: u16,
                   mapped: bool| {
        let destination = SocketAddr::new(to.parse().expect("an address"), port);
        let mut dial = Dial::new(creator, destination);
        dial.connector = connector.cloned();
        dial.source = source.map(|ip| SocketAddr::new(ip.parse().expect("an address"), 0));
        dial.patience_ms = PATIENCE_MS;
        dial.mapped = mapped;
        let from = source.map_or_else(String::new, |source| format!(" from {source}"));
        let mapped = if mapped { " (v4-mapped)" } else { "" };
        cases.push(Case {
            outbound: true,
            dial,
            name: format!("{who}{from} to {destination}{mapped}"),
        });
    };

    // Who: every creator to every destination.
    let gid_only = Identity::with_gid(APP.uid, PROXY.gid);
    let other_gid = Identity::with_gid(APP.uid, 2000);
    let mut supplementary = APP;
    supplementary.groups = vec![PROXY.gid];
    let mut setuid_program = PROXY;
    setuid_program.real_uid = Some(APP.uid);
    let creators: [(&str, &Identity, Option<&Identity>); 9] = [
        ("app", &APP, None),
        ("proxy", &PROXY, None),
        ("root", &ROOT, None),
        ("gid 1337", &gid_only, None),
        ("gid 2000", &other_gid, None),
        ("supplementary group 1337", &supplementary, None),
        ("setuid program", &setuid_program, None),
        ("root, then setuid 1337", &ROOT, Some(&PROXY)),
        ("proxy's socket passed to root", &PROXY, Some(&ROOT)),
    ];
    for (who, creator, connector) in creators {
        for to in addresses.all {
            add(who, creator, connector, None, to, 80, false);
        }
    }
    // From where: every source address.
    let sources = [
        addresses.own,
        addresses.second,
        addresses.loopback,
        addresses.own_self,
    ];
    for (who, creator) in [("app", &APP), ("proxy", &PROXY)] {
        for source in sources {
            for to in addresses.all {
                // An IPv6 packet from ::1 or ::6 leaves the pod and is never answered: one such
                // destination is enough to wait for.
                let lost = source.len() == 3 && *to == "fd77::fe";
                if !lost {
                    add(who, creator, None, Some(source), to, 80, false);
                }
            }
        }
    }
    // To which port.
    for (who, creator) in [("app", &APP), ("proxy", &PROXY)] {
        for to in [
            addresses.service,
            addresses.own,
            addresses.second,
            addresses.loopback,
        ] {
            for port in PORTS {
                add(who, creator, None, None, to, port, false);
                if family == Family::V4 {
                    add(who, creator, None, None, to, port, true);
                }
            }
        }
    }
    // Bound to a device: under iptables a redirect to lo that the device forbids.
    for (who, creator) in [("app", &APP), ("proxy", &PROXY)] {
        for to in [addresses.service, addresses.own] {
            let destination = SocketAddr::new(to.parse().expect("an address"), 80);
            let mut dial = Dial::new(creator, destination);
            dial.device = Some("eth0".to_owned());
            dial.patience_ms = PATIENCE_MS;
            cases.push(Case {
                outbound: true,
                dial,
                name: format!("{who}, SO_BINDTODEVICE eth0, to {destination}"),
            });
        }
    }
    // And the other way.
    for to in [addresses.own, addresses.second] {
        for port in PORTS {
            let destination = SocketAddr::new(to.parse().expect("an address"), port);
            let mut dial = Dial::new(&ROOT, destination);
            dial.patience_ms = PATIENCE_MS;
            cases.push(Case {
                outbound: false,
                dial,
                name: format!("inbound to {destination}"),
            });
        }
    }
    cases
}
