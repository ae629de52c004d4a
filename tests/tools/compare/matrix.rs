//! The connections that are made under every policy.

mod marked;
mod passing;
mod settings;

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    sync::atomic::{AtomicU16, Ordering},
};

use lab::{
    machine::MACHINE,
    network::BESIDE,
    product::Mode,
    protocol::{APP, Dial, Identity, Manner, ROOT},
};

use crate::{profiles::Profile, target::Target};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// What is dialed, by role.
    pub fn addresses(self) -> &'static Addresses {
        match self {
            Self::V4 => &V4,
            Self::V6 => &V6,
        }
    }
}

impl From<Family> for sidetrack_common::addr::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

/// Addresses of one family, by role.
pub struct Addresses {
    /// The pod's.
    pub own: &'static str,
    /// That of its second interface.
    pub second: &'static str,
    /// Loopback.
    pub loopback: &'static str,
    /// What the sidecar calls the application from.
    pub own_self: &'static str,
    /// Of a service outside.
    pub service: &'static str,
    /// Of the host outside.
    pub gateway: &'static str,
    /// Of the machine inside the pod.
    machine: &'static str,
    /// Everything that is dialed.
    all: &'static [&'static str],
}

const V4: Addresses = Addresses {
    own: "10.77.0.2",
    second: "10.78.0.2",
    loopback: "127.0.0.1",
    own_self: "127.0.0.6",
    service: "10.109.118.31",
    gateway: "10.77.0.254",
    machine: MACHINE[0],
    all: &[
        "10.109.118.31",
        "10.77.0.254",
        "10.77.0.2",
        "10.78.0.2",
        "10.78.0.254",
        "127.0.0.1",
        "127.0.0.2",
        "127.0.0.6",
        "0.0.0.0",
        "10.201.0.1",
        "10.202.0.1",
        "10.203.0.1",
        "10.109.204.1",
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
    gateway: "fd77::fe",
    machine: MACHINE[1],
    all: &[
        "fd99::31",
        "fd77::fe",
        "fd77::2",
        "fd78::2",
        "fd78::fe",
        "::1",
        "::6",
        "::",
        "fdb1::1",
        "fdb2::1",
        "fdb3::1",
        "fd99::204:1",
        "2001:db8::1",
        "ff02::1",
    ],
};

/// Ports that mean something to some rule, and one that means nothing.
const PORTS: [u16; 10] = [9, 22, 53, 80, 15001, 15006, 15008, 15020, 15021, 15090];

/// A host outside.
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0xfe);

/// Long enough for an answer within the machine.
const TIMEOUT_MS: u64 = 250;

/// Who makes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A process in the pod.
    Pod,
    /// A host outside.
    Outside,
    /// The machine inside the pod.
    Machine,
    /// Another pod of the network, which routes loopback addresses to this one.
    Neighbor,
}

impl Origin {
    /// In the order in which connections are made.
    pub const ALL: [Self; 4] = [Self::Pod, Self::Outside, Self::Machine, Self::Neighbor];
}

/// A connection and who makes it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The pod's interface it arrives by; `None` if it comes from the pod.
    pub arrives_by: Option<&'static str>,
    /// Who makes it.
    pub from: Origin,
    /// Whether it only passes through the pod.
    pub is_forwarded: bool,
    /// What is done.
    pub dial: Dial,
    /// In words.
    pub name: String,
}

impl Case {
    /// From a pod.
    pub fn outbound(who: &str, dial: Dial) -> Self {
        let from = dial.source.map(|source| format!(" from {}", source.ip()));
        let device = dial
            .device
            .as_ref()
            .map(|name| format!(", SO_BINDTODEVICE {name},"));
        let segment = dial.segment.map(|by| format!(", IPV6_RTHDR by {by},"));
        let mapped = if dial.mapped { " (v4-mapped)" } else { "" };
        let name = format!(
            "{who}{}{}{} to {}{mapped}",
            from.unwrap_or_default(),
            device.unwrap_or_default(),
            segment.unwrap_or_default(),
            dial.destination,
        );
        Self {
            arrives_by: None,
            from: Origin::Pod,
            is_forwarded: false,
            dial,
            name,
        }
    }

    /// To a pod.
    pub fn inbound(dial: Dial) -> Self {
        let by = if dial.device.is_some() {
            "eth1"
        } else {
            "eth0"
        };
        Self {
            name: format!("inbound by {by} to {}", dial.destination),
            arrives_by: Some(by),
            from: Origin::Outside,
            is_forwarded: false,
            dial,
        }
    }
}

/// All connections of a family: the same for every policy, and some for what this one and the settings name.
pub fn cases(family: Family, target: &Target, profile: Option<&Profile>) -> Vec<Case> {
    let matrix = Matrix::new(family, target);
    let mut cases = Vec::new();
    matrix.by_creator(&mut cases);
    matrix.by_source(&mut cases);
    matrix.by_port(&mut cases);
    matrix.by_mark(&mut cases);
    if target.servers.is_some() {
        matrix.by_query(&mut cases);
    }
    matrix.by_device(&mut cases);
    matrix.by_link_local(&mut cases);
    matrix.by_routing_header(&mut cases);
    matrix.by_mptcp(&mut cases);
    matrix.by_bound_port(&mut cases);
    matrix.by_reuse(&mut cases);
    matrix.arriving(&mut cases);
    matrix.passing(&mut cases);
    if let Some(profile) = profile {
        matrix.under(profile, &mut cases);
    }
    if let Some(mark) = target.policy.dialect.proxy_mark() {
        mark_sockets_of(&target.proxy(), mark, &mut cases);
    }
    // In the order in which they are made.
    cases.sort_by_key(|case| case.from);
    cases
}

/// A proxy that is known by its mark has it on all of its sockets.
fn mark_sockets_of(proxy: &Identity, mark: u32, cases: &mut [Case]) {
    let outbound = cases.iter_mut().filter(|case| case.arrives_by.is_none());
    for case in outbound.filter(|case| case.dial.creator == *proxy) {
        case.dial.mark = mark;
        case.name.push_str(", with its mark");
    }
}

struct Matrix {
    family: Family,
    fixed: &'static Addresses,
    destinations: Vec<IpAddr>,
    ports: Vec<u16>,
    creators: Vec<(String, Identity, Option<Identity>)>,
    /// The application and the sidecar.
    both: Vec<(&'static str, Identity)>,
    /// The mark of the sidecar's connections to the app, in mode TPROXY; or of all the proxy's.
    mark: Option<u32>,
}

impl Matrix {
    fn new(family: Family, target: &Target) -> Self {
        let fixed = family.addresses();
        let mut destinations: Vec<IpAddr> = fixed.all.iter().map(|text| ip(text)).collect();
        for address in target.addresses() {
            let v6 = matches!(family, Family::V6);
            if address.is_ipv6() == v6 && !destinations.contains(&address) {
                destinations.push(address);
            }
        }
        let mut ports = PORTS.to_vec();
        ports.extend(target.ports());
        ports.sort_unstable();
        ports.dedup();
        let proxy = target.proxy();
        let of_route = target.policy.return_route().map(|route| route.mark);
        let mark = target.policy.dialect.proxy_mark().or(of_route);
        let mut both = vec![("app", APP), ("proxy", proxy.clone())];
        let mut creators = creators(target, &proxy);
        if target.policy.mode == Mode::Tproxy {
            // Injectors have such a sidecar run as root, for its privileges.
            let sidecar = Identity::with_gid(ROOT.uid, proxy.gid);
            creators.push(("transparent sidecar".to_owned(), sidecar.clone(), None));
            both.push(("transparent sidecar", sidecar));
        }
        Self {
            family,
            fixed,
            destinations,
            ports,
            creators,
            both,
            mark,
        }
    }

    /// Who: every creator to every destination.
    fn by_creator(&self, cases: &mut Vec<Case>) {
        for (who, creator, connector) in &self.creators {
            for to in &self.destinations {
                let mut dial = dial(creator, *to, 80);
                dial.connector.clone_from(connector);
                cases.push(Case::outbound(who, dial));
            }
        }
    }

    /// DNS over TCP: every creator to every destination.
    fn by_query(&self, cases: &mut Vec<Case>) {
        for (who, creator, connector) in &self.creators {
            for to in &self.destinations {
                let mut dial = dial(creator, *to, 53);
                dial.connector.clone_from(connector);
                cases.push(Case::outbound(who, dial));
            }
        }
    }

    /// From where: every source address.
    fn by_source(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for source in [fixed.own, fixed.second, fixed.loopback, fixed.own_self] {
                for to in &self.destinations {
                    // An IPv6 packet from ::1 or ::6 leaves the pod and is never answered: one such
                    // destination is enough to wait for.
                    let lost = source.len() == 3 && ["fd77::fe", "fd78::fe"].map(ip).contains(to);
                    if !lost {
                        let mut dial = dial(creator, *to, 80);
                        dial.source = Some(SocketAddr::new(ip(source), 0));
                        cases.push(Case::outbound(who, dial));
                    }
                }
            }
        }
    }

    /// To which port.
    fn by_port(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for to in [fixed.service, fixed.own, fixed.second, fixed.loopback] {
                for port in &self.ports {
                    let plain = dial(creator, ip(to), *port);
                    let mut mapped = plain.clone();
                    mapped.mapped = true;
                    cases.push(Case::outbound(who, plain));
                    if self.family == Family::V4 {
                        cases.push(Case::outbound(who, mapped));
                    }
                }
            }
        }
    }

    /// Bound to a device: under iptables a redirect to lo that the device forbids.
    fn by_device(&self, cases: &mut Vec<Case>) {
        for (who, creator) in &self.both {
            for to in [self.fixed.service, self.fixed.own] {
                let mut dial = dial(creator, ip(to), 80);
                dial.device = Some("eth0".to_owned());
                cases.push(Case::outbound(who, dial));
            }
        }
    }

    /// To link-local addresses of the gateway and of the pod itself, with and without an interface.
    fn by_link_local(&self, cases: &mut Vec<Case>) {
        if self.family == Family::V4 {
            return;
        }
        for (who, creator) in &self.both {
            for (to, scope) in [(1, 2), (1, 0), (2, 2), (2, 0), (9, 2)] {
                let mut dial = dial(creator, Ipv6Addr::UNSPECIFIED.into(), 80);
                let to = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, to);
                dial.destination = SocketAddrV6::new(to, dial.destination.port(), 0, scope).into();
                cases.push(Case::outbound(who, dial));
            }
        }
    }

    /// With an IPv6 routing header, by way of another host outside.
    fn by_routing_header(&self, cases: &mut Vec<Case>) {
        if self.family == Family::V4 {
            return;
        }
        for (who, creator) in &self.both {
            for to in [self.fixed.service, self.fixed.own, self.fixed.loopback] {
                let mut dial = dial(creator, ip(to), 80);
                dial.segment = Some(GATEWAY_V6.into());
                cases.push(Case::outbound(who, dial));
            }
        }
    }

    /// On sockets of protocol MPTCP.
    fn by_mptcp(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for to in [fixed.service, fixed.own, fixed.second, fixed.loopback] {
                let mut dial = dial(creator, ip(to), 80);
                dial.manner = Manner::Mptcp;
                cases.push(Case::outbound(&format!("{who} by MPTCP"), dial));
            }
        }
    }

    /// From a bound port that another connection has as well, to another destination.
    fn by_bound_port(&self, cases: &mut Vec<Case>) {
        /// Below those that the kernel picks; one for each case of a run.
        static NEXT: AtomicU16 = AtomicU16::new(20_100);
        let fixed = self.fixed;
        let any = match self.family {
            Family::V4 => "0.0.0.0",
            Family::V6 => "::",
        };
        let gateway = SocketAddr::new(ip(fixed.gateway), 80);
        let other_port = SocketAddr::new(ip(fixed.service), 22);
        for source in [any, fixed.own] {
            for beside in [gateway, other_port] {
                let mut dial = dial(&APP, ip(fixed.service), 80);
                let port = NEXT.fetch_add(1, Ordering::Relaxed);
                dial.source = Some(SocketAddr::new(ip(source), port));
                dial.beside = Some(beside);
                let name = format!("app, connected to {beside} from the same port,");
                cases.push(Case::outbound(&name, dial));
            }
        }
    }

    /// On a socket whose first connection was dissolved.
    fn by_reuse(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for (who, creator) in &self.both {
            for first in [fixed.service, fixed.own] {
                for to in [fixed.gateway, fixed.own, fixed.second, fixed.loopback] {
                    let mut dial = dial(creator, ip(to), 80);
                    dial.first = Some(SocketAddr::new(ip(first), 80));
                    dial.dissolve = true;
                    let name = format!("{who}, after AF_UNSPEC on a connection to {first},");
                    cases.push(Case::outbound(&name, dial));
                }
            }
        }
    }

    /// And the other way, by both interfaces.
    fn arriving(&self, cases: &mut Vec<Case>) {
        let fixed = self.fixed;
        for to in [fixed.own, fixed.second] {
            for port in &self.ports {
                cases.push(Case::inbound(dial(&ROOT, ip(to), *port)));
                // By the other interface only the address that is there can be asked for.
                if to == fixed.second {
                    let mut beside = dial(&ROOT, ip(to), *port);
                    beside.device = Some(BESIDE.to_owned());
                    cases.push(Case::inbound(beside));
                }
            }
        }
    }
}

/// Those every policy is tried with, and one for every id this one names.
pub fn creators(target: &Target, proxy: &Identity) -> Vec<(String, Identity, Option<Identity>)> {
    const MAX_IDS: usize = 6;
    let mut supplementary = APP;
    supplementary.groups = vec![proxy.gid];
    let mut setuid_program = proxy.clone();
    setuid_program.real_uid = Some(APP.uid);
    let mut creators: Vec<(String, Identity, Option<Identity>)> = [
        ("app", APP, None),
        ("proxy", proxy.clone(), None),
        ("root", ROOT, None),
        ("proxy's gid", Identity::with_gid(APP.uid, proxy.gid), None),
        ("gid 2000", Identity::with_gid(APP.uid, 2000), None),
        ("proxy's gid as supplementary group", supplementary, None),
        ("setuid program", setuid_program, None),
        ("root, then setuid to proxy", ROOT, Some(proxy.clone())),
        ("proxy's socket passed to root", proxy.clone(), Some(ROOT)),
    ]
    .map(|(who, creator, connector)| (who.to_owned(), creator, connector))
    .into();
    let policy = &target.policy;
    let gids = policy
        .proxy_gids
        .iter()
        .chain(policy.included_groups.iter().flatten())
        .chain(&policy.excluded_groups);
    let named = policy
        .proxy_uids
        .iter()
        .map(|uid| (format!("uid {uid}"), Identity::with_gid(*uid, APP.gid)))
        .chain(gids.map(|gid| (format!("gid {gid}"), Identity::with_gid(APP.uid, *gid))));
    for (who, identity) in named.take(MAX_IDS) {
        if !creators.iter().any(|(_, known, _)| *known == identity) {
            creators.push((who, identity, None));
        }
    }
    creators
}

/// A connection with time for an answer within the machine.
pub fn dial(creator: &Identity, to: IpAddr, port: u16) -> Dial {
    let mut dial = Dial::new(creator, SocketAddr::new(to, port));
    dial.patience_ms = TIMEOUT_MS;
    dial
}

/// Whether it is a broadcast address, of all networks or of the pod's own.
pub fn is_broadcast(addr: IpAddr) -> bool {
    addr.to_canonical().to_string().ends_with("255.255")
}

/// An address as it is written here.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address of the matrix")
}
