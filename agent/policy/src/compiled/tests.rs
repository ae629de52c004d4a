//! The rows that policies become.

use ipnet::IpNet;
use sidetrack_common::{
    addr::Addr,
    dns::DnsBlock,
    policy::{List, OwnerKey, PortKey, RangeKey},
};

use super::{CompiledPolicy, ListSizes, Lists, counted_positions};
use crate::{
    fixture::{annotated, of_pod},
    policy::{InboundPorts, OutboundRanges, Policy},
};

const ID: u32 = 7;

fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

/// Every range with the position it counts under, in address order.
fn range_positions(compiled: &CompiledPolicy) -> Vec<(IpNet, u32)> {
    let mut positions: Vec<_> = compiled
        .lists
        .ranges
        .values()
        .flat_map(|nets| counted_positions(nets))
        .collect();
    positions.sort();
    positions
}

#[test]
fn port_rows_keep_their_first_position() {
    let policy = Policy {
        inbound: InboundPorts::Only(crate::spans(vec![80, 443, 80, 22])),
        excluded_outbound_ports: crate::spans(vec![3306]),
        included_outbound_ports: crate::spans(vec![53, 54]),
        ..Policy::default()
    };
    let mut rows: Vec<(u32, u16, u16, u32)> = policy
        .compile()
        .port_rows(ID)
        .map(|(PortKey { policy, list, port }, position)| (policy, list, port, position))
        .collect();
    rows.sort_unstable();
    let mut expected = [
        (List::InPort, 80, 0),
        (List::InPort, 443, 1),
        (List::InPort, 22, 3),
        (List::OutPortExcluded, 3306, 0),
        (List::OutPortIncluded, 53, 0),
        (List::OutPortIncluded, 54, 1),
    ]
    .map(|(list, port, position)| (ID, list as u16, port, position));
    expected.sort_unstable();
    assert_eq!(rows, expected);
}

#[test]
fn owner_rows_keep_their_first_position() {
    let policy = Policy {
        proxy_uids: vec![1337, 1338],
        proxy_gids: vec![1339],
        included_groups: Some(vec![5, 5, 6]),
        excluded_groups: vec![9],
        ..Policy::default()
    };
    let mut rows: Vec<(u32, u32, u32, u32)> = policy
        .compile()
        .owner_rows(ID)
        .map(|(OwnerKey { policy, list, id }, position)| (policy, list, id, position))
        .collect();
    rows.sort_unstable();
    let mut expected = [
        (List::MoreProxyUids, 1337, 0),
        (List::MoreProxyUids, 1338, 1),
        (List::GroupIncluded, 5, 0),
        (List::GroupIncluded, 6, 2),
        (List::GroupExcluded, 9, 0),
    ]
    .map(|(list, id, position)| (ID, list as u32, id, position));
    expected.sort_unstable();
    assert_eq!(rows, expected);
}

#[test]
fn range_rows_have_their_list_and_network() {
    let policy = Policy {
        outbound: OutboundRanges::Only(vec![net("10.1.2.3/8"), net("fd00::1/16")]),
        excluded_ranges: vec![net("192.0.2.0/24"), net("192.0.2.9/32")],
        ..Policy::default()
    };
    let rows: Vec<_> = policy.compile().range_rows(ID).collect();
    let key = |list: List, addr: Addr, prefix: u8| RangeKey::new(ID, list, addr, prefix);
    let v6 = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0);
    let expected = [
        (key(List::RangeIncluded, Addr::v4([10, 0, 0, 0]), 8), 0),
        (
            key(List::RangeIncluded, std::net::IpAddr::V6(v6).into(), 16),
            1,
        ),
        (key(List::RangeExcluded, Addr::v4([192, 0, 2, 0]), 24), 0),
        // The wider one comes first in the list, so it decides.
        (key(List::RangeExcluded, Addr::v4([192, 0, 2, 9]), 32), 0),
    ];
    assert_eq!(rows.len(), expected.len());
    for row in expected {
        assert!(rows.contains(&row), "{row:?} in {rows:?}");
    }
}

/// Of all ways to write three nested ranges, each counts under the first that holds it.
#[test]
fn nested_ranges_in_every_order() {
    let nets = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"].map(net);
    for [a, b, c] in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let list = vec![nets[a], nets[b], nets[c]];
        let policy = Policy {
            excluded_ranges: list.clone(),
            ..Policy::default()
        };
        for (net, position) in range_positions(&policy.compile()) {
            let first = list.iter().position(|wider| wider.contains(&net));
            assert_eq!(Some(position as usize), first, "{net} in {list:?}");
        }
    }
}

#[test]
fn a_range_counts_under_the_first_that_holds_it() {
    let policy = of_pod(&annotated(&[(
        "traffic.sidecar.istio.io/excludeOutboundIPRanges",
        "10.1.0.0/16,10.0.0.0/8,10.1.2.0/24,192.168.0.0/16",
    )]))
    .unwrap();
    let positions = range_positions(&policy.compile());
    assert_eq!(
        positions,
        [
            ("10.0.0.0/8".parse().unwrap(), 1),
            ("10.1.0.0/16".parse().unwrap(), 0),
            ("10.1.2.0/24".parse().unwrap(), 0),
            ("192.168.0.0/16".parse().unwrap(), 3),
        ]
    );
}

#[test]
fn sizes_are_numbers_of_rows() {
    let lists = Lists {
        ports: [(List::OutPortExcluded, vec![1, 2, 3, 4])].into(),
        ranged_ports: [(List::OutPortIncluded, vec![(8000, 0), (8001, 0)])].into(),
        ranges: [(
            List::RangeExcluded,
            vec![net("10.0.0.0/8"), net("fd00::/8")],
        )]
        .into(),
        numbers: [(List::OutPortRangeExcluded, vec![(net("0.0.0.80/32"), 1)])].into(),
        owners: [(List::GroupExcluded, vec![7])].into(),
        dns: Some(DnsBlock::NONE),
    };
    let policy = CompiledPolicy::new(Policy::default().compile().row(), lists);
    let sizes = ListSizes {
        ports: 4 + 2 + 1,
        ranges: 2 + 1,
        owners: 1,
    };
    assert_eq!(policy.list_sizes(), sizes);
    assert_eq!(policy.list_rows().sizes(), sizes);
    let sum = sizes.plus(ListSizes {
        ports: 10,
        ranges: 20,
        owners: 30,
    });
    assert_eq!((sum.ports, sum.ranges, sum.owners), (17, 23, 31));
}

#[test]
fn policies_with_other_entries_have_other_rows() {
    let of = |ports: &str| {
        of_pod(&annotated(&[(
            "traffic.sidecar.istio.io/excludeOutboundPorts",
            ports,
        )]))
        .unwrap()
        .compile()
        .list_rows()
    };
    assert_eq!(of("80,81"), of("80,81,80"));
    assert_ne!(of("80,81"), of("81,80"), "positions are counted");
    assert_ne!(of("80,81"), of("80"));
}
