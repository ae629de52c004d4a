//! What a connection is made of, as references into a policy that is not known yet: so a failing
//! case shrinks in its policy and in its connection independently.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::{
    prelude::{Just, Strategy, any, prop_oneof},
    sample::Index,
};
use sidetrack_common::addr::{Addr, Family};
use sidetrack_policy::{
    Span,
    policy::{InboundPorts, OutboundRanges, Policy},
};

use super::policies;

/// An address.
#[derive(Clone, Debug)]
pub enum Place {
    Unspecified,
    /// 127.0.0.1, ::1.
    Localhost,
    /// 127.0.0.6, ::6.
    Sidecar,
    /// Somewhere in 127.0.0.0/8; ::1.
    Loopback(u128),
    /// Somewhere in the policy's loopback range; ::1.
    PolicyLoopback(u128),
    /// Somewhere in one of the policy's ranges.
    InRange(Index, u128),
    /// The first address after one of the policy's ranges.
    AfterRange(Index),
    Anywhere(u128),
}

pub fn places() -> impl Strategy<Value = Place> {
    // The ends of a range are where mistakes are.
    let bits = || prop_oneof![Just(0), Just(u128::MAX), any::<u128>()];
    prop_oneof![
        4 => any::<u128>().prop_map(Place::Anywhere),
        8 => (any::<Index>(), bits()).prop_map(|(index, bits)| Place::InRange(index, bits)),
        1 => any::<Index>().prop_map(Place::AfterRange),
        1 => Just(Place::Unspecified),
        1 => Just(Place::Localhost),
        1 => Just(Place::Sidecar),
        1 => bits().prop_map(Place::Loopback),
        1 => bits().prop_map(Place::PolicyLoopback),
    ]
}

impl Place {
    pub fn address(&self, policy: &Policy, family: Family) -> IpAddr {
        let (everywhere, loopback, own_loopback): (&str, &str, IpNet) = match family {
            Family::V4 => ("0.0.0.0/0", "127.0.0.0/8", policy.loopback_v4.into()),
            Family::V6 => ("::/0", "::1/128", net("::1/128")),
        };
        let range = |index: &Index| {
            let included: &[IpNet] = match &policy.outbound {
                OutboundRanges::All => &[],
                OutboundRanges::Only(ranges) => ranges,
            };
            let ranges = policy.excluded_ranges.iter().chain(included);
            let ranges = ranges
                .chain(&policy.exclusions.destinations)
                .chain(&policy.exclusions.sources);
            let ranges: Vec<IpNet> = ranges
                .filter(|range| range.addr().is_ipv4() == (family == Family::V4))
                .copied()
                .collect();
            match ranges.is_empty() {
                true => net(everywhere),
                false => *index.get(&ranges),
            }
        };
        routable(match self {
            Self::Unspecified => net(everywhere).addr(),
            Self::Localhost => Addr::loopback_of(family).into(),
            Self::Sidecar => match family {
                Family::V4 => Addr::SELF_V4.into(),
                Family::V6 => Addr::SELF_V6.into(),
            },
            Self::Loopback(bits) => within(net(loopback), *bits),
            Self::PolicyLoopback(bits) => within(own_loopback, *bits),
            Self::InRange(index, bits) => within(range(index), *bits),
            Self::AfterRange(index) => match range(index).broadcast() {
                IpAddr::V4(last) => Ipv4Addr::from_bits(last.to_bits().wrapping_add(1)).into(),
                IpAddr::V6(last) => Ipv6Addr::from_bits(last.to_bits().wrapping_add(1)).into(),
            },
            Self::Anywhere(bits) => within(net(everywhere), *bits),
        })
    }
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

fn within(net: IpNet, bits: u128) -> IpAddr {
    match net {
        IpNet::V4(net) => {
            let host = bits as u32 & net.hostmask().to_bits();
            Ipv4Addr::from_bits(net.network().to_bits() | host).into()
        }
        IpNet::V6(net) => {
            let host = bits & net.hostmask().to_bits();
            Ipv6Addr::from_bits(net.network().to_bits() | host).into()
        }
    }
}

/// The address, or a similar one that TCP can connect to: rules never see TCP to multicast or
/// broadcast, and v4-mapped addresses belong to the other family.
fn routable(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(v4) if v4.is_multicast() || v4.is_broadcast() => {
            Ipv4Addr::from_bits(v4.to_bits() & !(1 << 31)).into()
        }
        IpAddr::V6(v6) if v6.is_multicast() || v6.to_ipv4_mapped().is_some() => {
            Ipv6Addr::from_bits(v6.to_bits() ^ (1 << 127)).into()
        }
        addr => addr,
    }
}

/// A port.
#[derive(Clone, Debug)]
pub enum Port {
    /// One of the policy's.
    Named(Index),
    /// Any.
    Is(u16),
}

pub fn ports() -> impl Strategy<Value = Port> {
    prop_oneof![
        policies::port().prop_map(Port::Is),
        any::<Index>().prop_map(Port::Named),
    ]
}

impl Port {
    pub fn resolve(&self, policy: &Policy) -> u16 {
        let index = match self {
            Self::Is(port) => return *port,
            Self::Named(index) => index,
        };
        let inbound: &[Span] = match &policy.inbound {
            InboundPorts::None => &[],
            InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports,
        };
        let fixed = [
            policy.outbound_port,
            policy.inbound_port,
            policy.tunnel_port,
        ];
        let of_owners = policy
            .exclusions
            .owners
            .iter()
            .flat_map(|owner| &owner.ports);
        let spans = inbound
            .iter()
            .chain(&policy.included_outbound_ports)
            .chain(&policy.excluded_outbound_ports)
            .chain(&policy.exclusions.inbound_ports)
            .chain(&policy.exclusions.outbound_ports)
            .chain(of_owners);
        let ends = spans.flat_map(|span| [span.first as u16, span.last as u16]);
        let all: Vec<u16> = fixed.into_iter().chain(ends).collect();
        *index.get(&all)
    }
}

/// Who created a socket.
#[derive(Clone, Debug)]
pub enum Creator {
    /// The kernel.
    Kernel,
    /// A process.
    Process { uid: Id, gid: Id },
}

/// A uid or gid.
#[derive(Clone, Debug)]
pub enum Id {
    /// One of the policy's.
    Named(Index),
    /// Any.
    Is(u32),
}

pub fn owners() -> impl Strategy<Value = Creator> {
    let id = || {
        prop_oneof![
            3 => (10_000..10_010_u32).prop_map(Id::Is),
            1 => policies::id().prop_map(Id::Is),
            2 => any::<Index>().prop_map(Id::Named),
        ]
    };
    prop_oneof![
        19 => (id(), id()).prop_map(|(uid, gid)| Creator::Process { uid, gid }),
        1 => Just(Creator::Kernel),
    ]
}

impl Creator {
    pub fn resolve(&self, policy: &Policy) -> Option<(u32, u32)> {
        let Self::Process { uid, gid } = self else {
            return None;
        };
        let included = policy.included_groups.as_deref().unwrap_or_default();
        let gids = [&policy.proxy_gids, included, &policy.excluded_groups].concat();
        let users = policy.exclusions.owners.iter();
        let users = users.flat_map(|owner| [owner.users.first, owner.users.last]);
        let uids: Vec<u32> = policy.proxy_uids.iter().copied().chain(users).collect();
        Some((uid.resolve(&uids), gid.resolve(&gids)))
    }
}

impl Id {
    fn resolve(&self, named: &[u32]) -> u32 {
        match self {
            Self::Is(id) => *id,
            Self::Named(_) if named.is_empty() => 1000,
            Self::Named(index) => *index.get(named),
        }
    }
}
