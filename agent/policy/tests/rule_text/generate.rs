//! Policies and connections by chance, so that rules match far more often than chance would have
//! it: what a connection is made of is drawn from its policy as often as from anywhere.

mod parts;
mod policies;

use std::net::{IpAddr, Ipv6Addr};

use proptest::{
    bool::weighted,
    option,
    prelude::{Strategy, any},
    sample::{Index, select},
};
use sidetrack_common::{addr::Family, dns::DNS_PORT};
use sidetrack_policy::{
    Dialect,
    policy::{DnsCapture, Policy},
};

use self::{
    parts::{owners, places, ports},
    policies::policies,
};
use crate::fixture::{Case, Connection, Pod, destination};

/// Connections made in a pod.
pub fn outbound() -> impl Strategy<Value = Case> {
    (
        policies(),
        families(),
        (places(), weighted(0.25)),
        option::weighted(0.4, places()),
        (owners(), marks()),
        (ports(), weighted(0.2)),
        any::<Index>(),
    )
        .prop_map(
            |(policy, family, (to, to_own), from, (owner, mark), (port, udp), device)| {
                let family = captured(&policy, family);
                let mut pod = pod(&policy, family, device);
                let dialed = not_link_local(to.address(&policy, family));
                let bound = from
                    .map(|from| from.address(&policy, family))
                    .filter(|bound| !bound.is_unspecified());
                // A socket can be bound only to what is assigned.
                let assigned = bound.into_iter().chain(to_own.then_some(dialed));
                let assigned =
                    assigned.filter(|addr| !addr.is_loopback() && !addr.is_unspecified());
                pod.own.extend(assigned);
                let leaves = !pod.is_local(destination(dialed, bound));
                // EINVAL, before any rule.
                let bound =
                    bound.filter(|bound| !(bound.is_ipv4() && bound.is_loopback() && leaves));
                let connection = Connection::Outbound {
                    owner: owner.resolve(&policy),
                    bound,
                    dialed,
                    port: if udp { DNS_PORT } else { port.resolve(&policy) },
                    udp,
                    // No other mesh has rules for marks.
                    mark: policy.dialect.proxy_mark().map_or(0, |_| mark),
                };
                Case {
                    policy,
                    family,
                    pod,
                    connection,
                }
            },
        )
}

/// Link-local destinations are refused without a rule; `cargo xtask compare` dials some.
fn not_link_local(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            Ipv6Addr::from_bits(v6.to_bits() ^ 1 << 126).into()
        }
        other => other,
    }
}

/// Connections made to a pod from elsewhere.
pub fn inbound() -> impl Strategy<Value = Case> {
    (
        policies(),
        families(),
        places(),
        places(),
        ports(),
        any::<Index>(),
    )
        .prop_map(|(mut policy, family, to, from, port, device)| {
            if policy.dialect == Dialect::V1_8 {
                // Not done: its chain ISTIO_REDIRECT sends to the DNS port what enters by virtual interfaces, too.
                policy.dns = DnsCapture::Off;
            }
            let family = captured(&policy, family);
            let mut pod = pod(&policy, family, device);
            // The kernel drops what comes from elsewhere and names a loopback address.
            let mut destination = to.address(&policy, family);
            if destination.is_loopback() || destination.is_unspecified() {
                destination = pod.own[0];
            }
            pod.own.push(destination);
            let mut source = from.address(&policy, family);
            if pod.is_local(source) || source.is_unspecified() {
                let elsewhere = addresses(
                    family,
                    ["198.51.100.7", "198.51.100.8"],
                    ["2001:db8:5::7", "2001:db8:5::8"],
                );
                source = elsewhere[usize::from(elsewhere[0] == destination)];
            }
            let connection = Connection::Inbound {
                source,
                destination,
                port: port.resolve(&policy),
                interface: pod.device.clone(),
            };
            Case {
                policy,
                family,
                pod,
                connection,
            }
        })
}

/// A family that the policy has rules for.
fn captured(policy: &Policy, family: Family) -> Family {
    if policy.ipv4_only { Family::V4 } else { family }
}

/// The proxy's mark with and without other bits, and others.
fn marks() -> impl Strategy<Value = u32> {
    select(vec![0, 0, 0x539, 0xabc_0539, 0x538, 0x0005_3900])
}

fn families() -> impl Strategy<Value = Family> {
    select(vec![Family::V4, Family::V6])
}

/// A pod that has one device, one of the policy's perhaps.
fn pod(policy: &Policy, family: Family, device: Index) -> Pod {
    let named = policy
        .excluded_interfaces
        .iter()
        .chain(&policy.virtual_interfaces);
    // A pattern matches a name of its own length, and one that is longer.
    let named = named.flat_map(|entry| [entry.clone(), entry.replace('+', "5")]);
    // Nothing leaves a pod by lo or comes from elsewhere by it.
    let named = named.filter(|name| name != "lo");
    let others = ["eth0", "eth7"].map(str::to_owned).into_iter();
    let devices: Vec<String> = others.chain(named).collect();
    Pod {
        own: addresses(
            family,
            ["10.244.0.7", "172.30.0.9"],
            ["fd00:10:244::7", "fd00:30::9"],
        )
        .to_vec(),
        device: device.get(&devices).clone(),
    }
}

fn addresses(family: Family, v4: [&str; 2], v6: [&str; 2]) -> [IpAddr; 2] {
    let texts = match family {
        Family::V4 => v4,
        Family::V6 => v6,
    };
    texts.map(|text| text.parse().expect("an address"))
}
