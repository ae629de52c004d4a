mod limits;
mod policy_routing;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHop, RouteNextHopFlags,
        RouteType,
    },
};
use sidetrack_common::{
    addr::Addr,
    pod::{Route, RouteKind},
};
use sidetrack_policy::Policy;

use super::{
    AssignedAddress, MAX_ROUTES, PodRoutes, RouteId, Snapshot,
    dump::{assigned_address, flat_route},
    flat_route::{FlatRoute, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN},
};

const COOKIE: u64 = 7;
const LO: u32 = 1;
const ETH0: u32 = 2;
const ETH1: u32 = 3;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn unicast(destination: &str, ifindex: u32) -> FlatRoute {
    FlatRoute {
        destination: net(destination),
        table: TABLE_MAIN,
        metric: 0,
        kind: RouteKind::Unicast,
        ifindex,
        other_hops: Vec::new(),
        gateway: None,
        preferred_source: None,
    }
}

fn local(destination: &str, ifindex: u32) -> FlatRoute {
    FlatRoute {
        table: TABLE_LOCAL,
        kind: RouteKind::Local,
        ..unicast(destination, ifindex)
    }
}

fn address(net_text: &str, ifindex: u32) -> AssignedAddress {
    AssignedAddress {
        net: net(net_text),
        ifindex,
        usable: true,
    }
}

/// lo, eth0 with 10.1.0.5/24 and fd01::5/64, eth1 with 10.2.0.5/24.
fn pod(routes: Vec<FlatRoute>) -> Snapshot {
    let names = [(LO, "lo"), (ETH0, "eth0"), (ETH1, "eth1")];
    Snapshot {
        links: HashMap::from(names.map(|(index, name)| (index, name.to_owned()))),
        addresses: vec![
            address("127.0.0.1/8", LO),
            address("10.1.0.5/24", ETH0),
            address("10.2.0.5/24", ETH1),
            address("::1/128", LO),
            address("fd01::5/64", ETH0),
        ],
        routes,
        ..Snapshot::default()
    }
}

fn rows_of(snapshot: &Snapshot) -> PodRoutes {
    snapshot.rows(COOKIE, &[], None, MAX_ROUTES)
}

fn row(snapshot: &Snapshot, destination: &str) -> Option<Route> {
    row_in_view(snapshot, 0, destination)
}

fn row_in_view(snapshot: &Snapshot, view: u32, destination: &str) -> Option<Route> {
    let rows = rows_of(snapshot).rows;
    let id = RouteId::new((COOKIE, view), net(destination));
    rows.get(&id).copied()
}

fn source(snapshot: &Snapshot, destination: &str) -> IpAddr {
    row(snapshot, destination).unwrap().source.into()
}

#[test]
fn table_local_wins_over_main() {
    let snapshot = pod(vec![
        unicast("10.1.0.5/32", ETH1),
        local("10.1.0.5/32", ETH0),
        // For IPv6 the local table comes first, however wide its route is.
        local("fd00::/16", ETH0),
        unicast("fd00:1::/32", ETH1),
    ]);
    assert!(row(&snapshot, "10.1.0.5/32").unwrap().is_local());
    assert!(row(&snapshot, "fd00::/16").unwrap().is_local());
    assert_eq!(row(&snapshot, "fd00:1::/32"), None);
}

#[test]
fn for_ipv4_local_and_main_are_one_table() {
    let snapshot = pod(vec![
        local("127.0.0.0/8", LO),
        unicast("127.1.0.0/16", ETH1),
    ]);
    assert!(row(&snapshot, "127.0.0.0/8").unwrap().is_local());
    assert!(row(&snapshot, "127.1.0.0/16").unwrap().is_unicast());
}

#[test]
fn ipv6_has_no_default_table() {
    let in_default = |net: &str| FlatRoute {
        table: TABLE_DEFAULT,
        ..unicast(net, ETH0)
    };
    let snapshot = pod(vec![in_default("fd00::/16"), in_default("10.0.0.0/8")]);
    assert_eq!(row(&snapshot, "fd00::/16"), None);
    assert!(row(&snapshot, "10.0.0.0/8").is_some());
}

#[test]
fn narrower_prefixes_of_earlier_tables_do_not_hide_wider_ones() {
    let snapshot = pod(vec![
        unicast("10.0.0.0/8", ETH0),
        local("10.1.0.5/32", ETH0),
        FlatRoute {
            table: TABLE_DEFAULT,
            ..unicast("0.0.0.0/0", ETH1)
        },
    ]);
    assert_eq!(rows_of(&snapshot).rows.len(), 3);
    assert_eq!(row(&snapshot, "0.0.0.0/0").unwrap().ifindex, ETH1);
}

#[test]
fn the_lowest_metric_wins_within_a_table() {
    let with_metric = |metric, ifindex| FlatRoute {
        metric,
        ..unicast("10.9.0.0/16", ifindex)
    };
    for routes in [
        vec![with_metric(10, ETH0), with_metric(20, ETH1)],
        vec![with_metric(20, ETH1), with_metric(10, ETH0)],
    ] {
        assert_eq!(row(&pod(routes), "10.9.0.0/16").unwrap().ifindex, ETH0);
    }
    // A table comes before any metric.
    let in_default = FlatRoute {
        table: TABLE_DEFAULT,
        ..with_metric(0, ETH1)
    };
    let snapshot = pod(vec![in_default, with_metric(500, ETH0)]);
    assert_eq!(row(&snapshot, "10.9.0.0/16").unwrap().ifindex, ETH0);
}

#[test]
fn routes_by_excluded_devices_carry_their_position() {
    let snapshot = pod(vec![
        unicast("10.1.0.0/24", ETH0),
        unicast("10.2.0.0/24", ETH1),
        FlatRoute {
            other_hops: vec![ETH0],
            ..unicast("10.3.0.0/24", ETH1)
        },
        FlatRoute {
            other_hops: vec![ETH1],
            ..unicast("10.4.0.0/24", ETH1)
        },
        local("10.1.0.5/32", ETH0),
    ]);
    let excluded = ["eth1".to_owned(), "lo".to_owned()];
    let rows = snapshot.rows(COOKIE, &excluded, None, MAX_ROUTES).rows;
    let excluded = |destination| rows[&RouteId::new((COOKIE, 0), net(destination))].excluded();
    assert_eq!(excluded("10.1.0.0/24"), None);
    assert_eq!(excluded("10.2.0.0/24"), Some(0));
    // Of several hops all have to be excluded.
    assert_eq!(excluded("10.3.0.0/24"), None);
    assert_eq!(excluded("10.4.0.0/24"), Some(0));
    // Packets to an address of eth0 leave by lo.
    assert_eq!(excluded("10.1.0.5/32"), Some(1));
}

#[test]
fn of_too_many_routes_the_local_ones_stay() {
    let mut routes: Vec<FlatRoute> = (0..2047_u32)
        .map(|n| unicast(&format!("{}/32", Ipv4Addr::from(0x0a09_0000 + n)), ETH0))
        .collect();
    routes.push(local("10.1.0.5/32", ETH0));
    let mut snapshot = pod(routes);
    assert_eq!(rows_of(&snapshot).rows.len(), 2048);
    snapshot.routes.push(unicast("10.8.0.0/16", ETH0));
    let rows = rows_of(&snapshot).rows;
    assert_eq!(rows.len(), 3, "one address and two defaults: {rows:?}");
    assert!(row(&snapshot, "10.1.0.5/32").unwrap().is_local());
    assert!(row(&snapshot, "0.0.0.0/0").unwrap().is_unicast());
    assert!(row(&snapshot, "::/0").unwrap().is_unicast());
}

#[test]
fn sources_follow_route_device_and_next_hop() {
    let preferred = FlatRoute {
        preferred_source: Some(ip("10.2.0.5")),
        ..unicast("10.1.0.0/24", ETH0)
    };
    assert_eq!(source(&pod(vec![preferred]), "10.1.0.0/24"), ip("10.2.0.5"));

    let mut snapshot = pod(vec![
        local("fd01::5/128", ETH0),
        unicast("0.0.0.0/0", ETH1),
        unicast("192.0.2.0/24", 99),
        FlatRoute {
            gateway: Some(ip("10.3.0.1")),
            ..unicast("10.50.0.0/16", ETH0)
        },
    ]);
    snapshot.addresses.push(address("10.3.0.5/24", ETH0));
    assert_eq!(source(&snapshot, "fd01::5/128"), ip("fd01::5"));
    assert_eq!(source(&snapshot, "0.0.0.0/0"), ip("10.2.0.5"));
    assert_eq!(
        source(&snapshot, "10.50.0.0/16"),
        ip("10.3.0.5"),
        "the gateway's subnet"
    );
    assert_eq!(
        source(&snapshot, "192.0.2.0/24"),
        ip("10.1.0.5"),
        "a device without an address"
    );
    for assigned in &mut snapshot.addresses {
        assigned.usable = false;
    }
    assert!(row(&snapshot, "0.0.0.0/0").unwrap().source.is_unspecified());
}

#[test]
fn ipv6_is_captured_as_by_istio_iptables() {
    let with = |addresses: &[&str]| Snapshot {
        addresses: addresses.iter().map(|text| address(text, ETH0)).collect(),
        ..Snapshot::default()
    };
    let v4_first = with(&["127.0.0.1/8", "10.1.0.5/24", "fd01::5/64"]);
    assert!(!v4_first.captures_v6(&policy(false)));
    assert!(v4_first.captures_v6(&policy(true)));
    let v6_only = with(&[
        "127.0.0.1/8",
        "169.254.0.1/16",
        "::1/128",
        "fe80::1/64",
        "fd01::5/64",
    ]);
    assert!(v6_only.captures_v6(&policy(false)));
    // The address that the agent itself adds does not count.
    let none = with(&["127.0.0.1/8", "::1/128", "fe80::1/64", "::6/128"]);
    assert!(!none.captures_v6(&policy(false)) && !none.captures_v6(&policy(true)));
}

#[test]
fn addresses_are_found() {
    let snapshot = pod(Vec::new());
    assert!(snapshot.has_address(ip("fd01::5")));
    assert!(!snapshot.has_address(ip("10.1.0.6")));
}

/// 10.9.0.0/16 via 10.1.0.1 on eth0, in table main.
fn message() -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 16;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(10, 9, 0, 0))),
        RouteAttribute::Gateway(RouteAddress::Inet(Ipv4Addr::new(10, 1, 0, 1))),
        RouteAttribute::Oif(ETH0),
        RouteAttribute::Table(TABLE_MAIN),
    ];
    message
}

#[test]
fn netlink_routes_become_flat_routes() {
    let mut route = message();
    route.attributes.push(RouteAttribute::Priority(100));
    let expected = FlatRoute {
        metric: 100,
        gateway: Some(ip("10.1.0.1")),
        ..unicast("10.9.0.0/16", ETH0)
    };
    assert_eq!(flat_route(&route), Some(expected));

    let mut v6 = RouteMessage::default();
    v6.header.address_family = AddressFamily::Inet6;
    v6.header.kind = RouteType::Anycast;
    v6.header.table = TABLE_MAIN as u8;
    let flat = flat_route(&v6).unwrap();
    assert_eq!(flat.destination, net("::/0"));
    assert_eq!(flat.kind, RouteKind::Local);
}

#[test]
fn routes_that_no_packet_takes_are_omitted() {
    for flags in [RouteFlags::Dead, RouteFlags::Cloned] {
        let mut route = message();
        route.header.flags = flags;
        assert_eq!(flat_route(&route), None, "{flags:?}");
    }
    let mut unknown = message();
    unknown.header.kind = RouteType::Nat;
    assert_eq!(flat_route(&unknown), None);
}

#[test]
fn multipath_routes_take_the_first_live_hop() {
    let hop = |ifindex, flags| {
        let mut hop = RouteNextHop::default();
        hop.interface_index = ifindex;
        hop.flags = flags;
        hop
    };
    let route = |hops| {
        let mut route = message();
        route.attributes.push(RouteAttribute::MultiPath(hops));
        flat_route(&route)
    };
    let dead = hop(ETH0, RouteNextHopFlags::Dead);
    let live = hop(ETH1, RouteNextHopFlags::empty());
    let of_three = route(vec![dead.clone(), live.clone(), hop(LO, live.flags)]).unwrap();
    assert_eq!((of_three.ifindex, of_three.other_hops), (ETH1, vec![LO]));
    assert_eq!(route(vec![dead.clone(), live]).unwrap().ifindex, ETH1);
    assert_eq!(route(vec![dead]), None);
}

#[test]
fn the_kernel_picks_usable_addresses_only() {
    let usable = |text: &str, scope, header_flags, flags| {
        let mut message = AddressMessage::default();
        let net = net(text);
        message.header.prefix_len = net.prefix_len();
        message.header.scope = scope;
        message.header.flags = header_flags;
        message.header.index = ETH0;
        message.attributes = vec![
            AddressAttribute::Address(net.addr()),
            AddressAttribute::Flags(flags),
        ];
        assigned_address(&message).unwrap().usable
    };
    let (no_header, none) = (AddressHeaderFlags::empty(), AddressFlags::empty());
    let (everywhere, secondary) = (AddressScope::Universe, AddressHeaderFlags::Secondary);
    assert!(usable("10.1.0.5/24", everywhere, no_header, none));
    assert!(!usable("10.1.0.5/24", everywhere, secondary, none));
    assert!(!usable("127.0.0.1/8", AddressScope::Host, no_header, none));
    assert!(
        usable("fd01::5/64", everywhere, secondary, none),
        "temporary"
    );
    assert!(!usable("fe80::5/64", AddressScope::Link, no_header, none));
    assert!(!usable("::6/128", everywhere, no_header, none));
    for flag in [
        AddressFlags::Deprecated,
        AddressFlags::Tentative,
        AddressFlags::Dadfailed,
    ] {
        assert!(
            !usable("fd01::5/64", everywhere, no_header, flag),
            "{flag:?}"
        );
    }
}

#[test]
fn point_to_point_interfaces_have_their_local_address() {
    let mut message = AddressMessage::default();
    message.header.prefix_len = 32;
    message.attributes = vec![
        AddressAttribute::Address(ip("10.1.0.1")),
        AddressAttribute::Local(ip("10.1.0.5")),
    ];
    let assigned = assigned_address(&message).unwrap();
    assert_eq!(assigned.net, net("10.1.0.5/32"));
    assert_eq!(Addr::from(assigned.net.addr()), Addr::v4([10, 1, 0, 5]));
}

fn policy(dual_stack: bool) -> Policy {
    Policy {
        dual_stack,
        ..Policy::default()
    }
}

#[test]
fn a_route_for_some_packets_makes_its_family_reachable() {
    let read = |change: fn(&mut RouteMessage)| {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet;
        route.header.kind = RouteType::Local;
        route.header.table = TABLE_LOCAL as u8;
        change(&mut route);
        let route = RouteNetlinkMessage::NewRoute(route);
        let payload = NetlinkPayload::InnerMessage(route);
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), payload);
        message.finalize();
        let mut datagram = vec![0; message.buffer_len()];
        message.serialize(&mut datagram);
        Snapshot::of_answer(&datagram).expect("an answer")
    };
    let everything = |snapshot: &Snapshot| row(snapshot, "0.0.0.0/0").expect("a row");
    assert!(everything(&read(|_| {})).is_local());
    // Its connections are captured, whichever of them the route is for.
    assert!(everything(&read(|route| route.header.tos = 4)).is_unicast());
    let of_source = |route: &mut RouteMessage| route.header.source_prefix_length = 8;
    assert!(everything(&read(of_source)).is_unicast());
}
