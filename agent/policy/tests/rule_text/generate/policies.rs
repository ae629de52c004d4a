//! Policies: every dialect, every list of any of a few lengths, entries that overlap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use proptest::{
    bool::weighted,
    collection::vec,
    option,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::select,
};
use sidetrack_policy::{
    Dialect, Exclusions, InboundPorts, Mode, OutboundRanges, OwnerExclusion, Policy, Protocol,
    Span, mesh::MeshName, policy::DnsCapture,
};

/// Entries of a list; more than one, because their order matters.
const ENTRIES: std::ops::Range<usize> = 0..4;

pub fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![5 => of_istio(), 1 => linkerd(), 1 => kuma(), 1 => consul(), 1 => ambient()]
}

fn ambient() -> impl Strategy<Value = Policy> {
    let annotations = (any::<bool>(), weighted(0.2), interfaces());
    annotations.prop_map(
        |(captures_dns, bypasses_inbound, virtual_interfaces)| Policy {
            dialect: Dialect::Ambient,
            proxy_uids: Vec::new(),
            proxy_gids: Vec::new(),
            mode: Mode::Tproxy,
            tproxy_mark: 0x111,
            tproxy_table: 100,
            inbound: match bypasses_inbound {
                true => InboundPorts::None,
                false => InboundPorts::AllExcept(Vec::new()),
            },
            virtual_interfaces,
            dns: match captures_dns {
                true => DnsCapture::All,
                false => DnsCapture::Off,
            },
            ..Policy::default()
        },
    )
}

/// Ports and ranges of them.
fn spans() -> impl Strategy<Value = Vec<Span>> {
    let span = (port(), prop_oneof![2 => Just(0), 1 => 1..2000_u16]).prop_map(|(first, more)| {
        let last = first.saturating_add(more);
        Span {
            first: first.into(),
            last: last.into(),
        }
    });
    vec(span, 0..9)
}

fn linkerd() -> impl Strategy<Value = Policy> {
    let inbound = prop_oneof![
        3 => Just(InboundPorts::AllExcept(Vec::new())),
        1 => vec(port().prop_map(Span::from), 1..4).prop_map(InboundPorts::Only),
    ];
    let owners = (vec(id(), 0..2), vec(id(), 0..2));
    let lists = (spans(), spans(), vec(range(), ENTRIES));
    (owners, inbound, lists, dns()).prop_map(
        |((proxy_uids, proxy_gids), inbound, (inbound_ports, outbound_ports, sources), dns)| {
            Policy {
                dialect: Dialect::Linkerd,
                inbound_port: 4143,
                outbound_port: 4140,
                proxy_uids,
                proxy_gids,
                inbound,
                dns,
                exclusions: Exclusions {
                    inbound_ports,
                    outbound_ports,
                    sources,
                    ..Exclusions::default()
                },
                ..Policy::default()
            }
        },
    )
}

fn kuma() -> impl Strategy<Value = Policy> {
    let owner = (
        id(),
        prop_oneof![Just(0), 1..20_000_u32],
        any::<bool>(),
        spans(),
    );
    let owner = owner.prop_map(|(first, more, tcp, mut ports)| {
        ports.truncate(7);
        if ports.is_empty() {
            ports.push(Span::ALL_PORTS);
        }
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let users = Span {
            first,
            last: first + more,
        };
        OwnerExclusion {
            users,
            protocol: Some(protocol),
            ports,
        }
    });
    let lists = (vec(owner, 0..3), vec(range(), 0..3), vec(range(), 0..3));
    let ports = (
        vec(port_or_range(), ENTRIES),
        option::weighted(0.2, vec(port_or_range(), 1..4)),
    );
    (id(), inbound(), lists, ports, dns(), weighted(0.1)).prop_map(
        |(uid, inbound, (owners, destinations, sources), (except, only), dns, outbound_off)| {
            let has_inbound = inbound != InboundPorts::None;
            let outbound = match &only {
                Some(_) => OutboundRanges::Only(Vec::new()),
                None => OutboundRanges::All,
            };
            let is_plain = only.is_none() && !outbound_off;
            Policy {
                dialect: Dialect::Kuma,
                proxy_uids: vec![uid],
                proxy_gids: Vec::new(),
                inbound,
                outbound,
                included_outbound_ports: only.unwrap_or_default(),
                excluded_outbound_ports: if is_plain { except } else { Vec::new() },
                dns,
                exclusions: Exclusions {
                    owners,
                    destinations,
                    sources: if has_inbound { sources } else { Vec::new() },
                    outbound_off,
                    ..Exclusions::default()
                },
                ..Policy::default()
            }
        },
    )
}

fn consul() -> impl Strategy<Value = Policy> {
    let users = vec((id(), 0..1000_u32), 0..3);
    let lists = (users, vec(range(), 0..3), spans(), spans());
    (id(), lists, any::<bool>(), any::<bool>()).prop_map(
        |(uid, (users, destinations, inbound_ports, outbound_ports), has_dns, ipv4_only)| {
            let owner = |(first, more): (u32, u32)| OwnerExclusion {
                users: Span {
                    first,
                    last: first + more,
                },
                protocol: None,
                ports: Vec::new(),
            };
            Policy {
                dialect: Dialect::Consul,
                inbound_port: 20_000,
                proxy_uids: vec![uid],
                proxy_gids: Vec::new(),
                dns: if has_dns {
                    DnsCapture::All
                } else {
                    DnsCapture::Off
                },
                dns_port: 8600,
                ipv4_only,
                exclusions: Exclusions {
                    owners: users.into_iter().map(owner).collect(),
                    destinations,
                    inbound_ports,
                    outbound_ports,
                    ..Exclusions::default()
                },
                ..Policy::default()
            }
        },
    )
}

fn of_istio() -> impl Strategy<Value = Policy> {
    let owners = (
        select(
            Dialect::ALL
                .into_iter()
                .filter(|it| it.mesh() == MeshName::Istio)
                .collect::<Vec<_>>(),
        ),
        vec(id(), ENTRIES),
        vec(id(), ENTRIES),
        option::weighted(0.25, vec(id(), ENTRIES)),
        vec(id(), 0..2),
    );
    let capture = ([port(), port(), port()], inbound(), outbound());
    let lists = (
        vec(range(), ENTRIES),
        vec(port_or_range(), ENTRIES),
        vec(port_or_range(), 0..3),
    );
    let interfaces = (interfaces(), interfaces(), dns());
    (owners, capture, lists, interfaces, loopback()).prop_map(
        |(
            (dialect, proxy_uids, proxy_gids, included_groups, excluded_groups),
            ([outbound_port, inbound_port, tunnel_port], inbound, outbound),
            (excluded_ranges, included_outbound_ports, excluded_outbound_ports),
            (excluded_interfaces, virtual_interfaces, dns),
            loopback_v4,
        )| Policy {
            dialect,
            outbound_port,
            inbound_port,
            tunnel_port,
            proxy_uids,
            proxy_gids,
            inbound,
            outbound,
            excluded_ranges,
            included_outbound_ports,
            excluded_outbound_ports,
            excluded_interfaces,
            virtual_interfaces,
            loopback_v4,
            included_groups,
            excluded_groups,
            dns,
            // These select pods and do not affect connections.
            ..Policy::default()
        },
    )
}

fn dns() -> impl Strategy<Value = DnsCapture> {
    let servers = vec(range().prop_map(|range| range.addr()), 0..3);
    prop_oneof![
        Just(DnsCapture::Off),
        Just(DnsCapture::All),
        servers.prop_map(|servers| DnsCapture::Servers(Some(servers))),
    ]
}

fn inbound() -> impl Strategy<Value = InboundPorts> {
    prop_oneof![
        1 => Just(InboundPorts::None),
        4 => vec(port_or_range(), ENTRIES).prop_map(InboundPorts::AllExcept),
        4 => vec(port_or_range(), ENTRIES).prop_map(InboundPorts::Only),
    ]
}

fn outbound() -> impl Strategy<Value = OutboundRanges> {
    prop_oneof![
        Just(OutboundRanges::All),
        vec(range(), ENTRIES).prop_map(OutboundRanges::Only),
    ]
}

/// Few enough that lists have entries in common, and the ports that have rules of their own.
pub fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        3 => select(vec![53, 80, 22, 443, 8080, 15001, 15006, 15008, 15020, 15021, 15090]),
        1 => 1..=u16::MAX,
    ]
}

/// An entry of a list of ports.
fn port_or_range() -> impl Strategy<Value = Span> {
    let range = (port(), 1..200_u16).prop_map(|(middle, more)| Span {
        first: middle.saturating_sub(more / 2).into(),
        last: middle.saturating_add(more).into(),
    });
    prop_oneof![6 => port().prop_map(Span::from), 1 => range]
}

/// User and group ids.
pub fn id() -> impl Strategy<Value = u32> {
    select(vec![1337, 0, 1000, 1338, 65534])
}

fn range() -> impl Strategy<Value = IpNet> {
    let known = |list: &[&str]| {
        let parsed = list.iter().map(|text| text.parse().expect("an address"));
        select(parsed.collect::<Vec<IpAddr>>())
    };
    let v4 = prop_oneof![
        3 => known(&["10.0.0.0", "10.1.2.3", "192.0.2.7"]),
        1 => known(&["127.0.0.1", "127.0.0.6", "127.3.2.1"]),
        1 => any::<Ipv4Addr>().prop_map(IpAddr::V4),
    ];
    let v6 = prop_oneof![
        3 => known(&["fd00::", "fd00:1::7", "2001:db8::5"]),
        1 => known(&["::1", "::6"]),
        1 => any::<Ipv6Addr>().prop_map(IpAddr::V6),
    ];
    let of = |addr: IpAddr, prefix: u8| IpNet::new(addr, prefix).expect("a prefix that fits");
    let v4 = (v4, prop_oneof![Just(32_u8), 0..=32_u8]);
    let v6 = (v6, prop_oneof![Just(128_u8), 0..=128_u8]);
    prop_oneof![
        v4.prop_map(move |(addr, prefix)| of(addr, prefix)),
        // The parser refuses ranges of v4-mapped addresses.
        v6.prop_map(move |(addr, prefix)| of(addr, prefix))
            .prop_filter("v4-mapped", |net| match net.network() {
                IpAddr::V6(network) => network.to_ipv4_mapped().is_none(),
                IpAddr::V4(_) => true,
            }),
    ]
}

fn interfaces() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![
        9 => select(vec!["eth1", "net1", "tap0", "eth0"]),
        3 => select(vec!["eth+", "net+", "et+", "net1+", "+"]),
        1 => Just("lo"),
    ];
    let names = vec(name.prop_map(str::to_owned), 1..4);
    option::weighted(0.2, names).prop_map(Option::unwrap_or_default)
}

/// `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`.
fn loopback() -> impl Strategy<Value = Ipv4Net> {
    let wide = (any::<u32>(), 8..=32_u8).prop_map(|(bits, prefix)| {
        let addr = Ipv4Addr::from_bits(127 << 24 | bits >> 8);
        Ipv4Net::new(addr, prefix).expect("a prefix that fits")
    });
    prop_oneof![Just(Policy::default().loopback_v4), wide]
}
