//! Policies: every dialect, every list of any of a few lengths, entries that overlap.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use proptest::{
    collection::vec,
    option,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::select,
};
use sidetrack_policy::{Dialect, InboundPorts, OutboundRanges, Policy, policy::DnsCapture};

/// Entries of a list; more than one, because their order matters.
const ENTRIES: std::ops::Range<usize> = 0..4;

pub fn policies() -> impl Strategy<Value = Policy> {
    let owners = (
        select(Dialect::ALL.to_vec()),
        vec(id(), ENTRIES),
        vec(id(), ENTRIES),
        option::weighted(0.25, vec(id(), ENTRIES)),
        vec(id(), 0..2),
    );
    let capture = ([port(), port(), port()], inbound(), outbound());
    let lists = (
        vec(range(), ENTRIES),
        vec(port(), ENTRIES),
        vec(port(), 0..3),
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
        4 => vec(port(), ENTRIES).prop_map(InboundPorts::AllExcept),
        4 => vec(port(), ENTRIES).prop_map(InboundPorts::Only),
    ]
}

fn outbound() -> impl Strategy<Value = OutboundRanges> {
    prop_oneof![
        Just(OutboundRanges::All),
        vec(range(), ENTRIES).prop_map(OutboundRanges::Only),
    ]
}

/// Few enough that lists share entries, and the ports that have rules of their own.
pub fn port() -> impl Strategy<Value = u16> {
    prop_oneof![
        3 => select(vec![53, 80, 22, 443, 8080, 15001, 15006, 15008, 15020, 15021, 15090]),
        1 => 1..=u16::MAX,
    ]
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
