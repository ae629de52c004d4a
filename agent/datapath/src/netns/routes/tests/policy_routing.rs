//! Rules that choose between tables.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage, RuleUidRange},
};
use sidetrack_common::{
    addr::{Addr, Family},
    pod::{Route, RouteKind},
    route_rules::{RoutedSocket, view},
};
use sidetrack_policy::policy::ReturnRoute;

use super::{COOKIE, ETH0, ETH1, LO, ip, local, net, pod, row, row_in_view, rows_of, unicast};
use crate::netns::routes::{
    MAX_ROUTES, RouteId, Snapshot,
    flat_route::{FlatRoute, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN},
};

const OTHER: u32 = 100;

fn rule(table: u32, attributes: Vec<RuleAttribute>) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.action = RuleAction::ToTable;
    message.attributes = attributes;
    message.attributes.push(RuleAttribute::Table(table));
    message
}

fn from(network: &str, table: u32) -> RuleMessage {
    let network = net(network);
    let mut message = rule(table, vec![RuleAttribute::Source(network.addr())]);
    message.header.src_len = network.prefix_len();
    message
}

/// A pod with these routes and, after the rule for table `local`, these rules.
fn with_rules(rules: &[RuleMessage], routes: Vec<FlatRoute>) -> Snapshot {
    let mut snapshot = pod(routes);
    let usual = [TABLE_MAIN, TABLE_DEFAULT].map(|table| rule(table, Vec::new()));
    let first = rule(TABLE_LOCAL, Vec::new());
    for rule in [first].iter().chain(rules).chain(&usual) {
        snapshot.rules.add(rule, Some("lo"));
    }
    snapshot
}

fn in_table(table: u32, route: FlatRoute) -> FlatRoute {
    FlatRoute { table, ..route }
}

/// eth0 leads everywhere, and by table 100 eth1 does.
fn two_ways() -> Vec<FlatRoute> {
    vec![
        local("10.2.0.5/32", ETH1),
        unicast("0.0.0.0/0", ETH0),
        in_table(OTHER, unicast("0.0.0.0/0", ETH1)),
    ]
}

/// The route of a socket to a destination, as the kernel programs look it up.
fn routed(snapshot: &Snapshot, socket: RoutedSocket, to: &str) -> Option<Route> {
    let routes = rows_of(snapshot);
    let selectors = routes.selectors[usize::from(ip(to).is_ipv6())];
    let view = selectors.map_or(0, |selectors| view(&selectors, &socket, |number| number));
    let matching = routes.rows.iter().filter(|(id, _)| {
        let is_in_view = **id == RouteId::new((COOKIE, view), id.destination());
        is_in_view && id.destination().contains(&ip(to))
    });
    let longest = matching.max_by_key(|(id, _)| id.destination().prefix_len());
    longest.map(|(_, route)| *route)
}

fn device(snapshot: &Snapshot, socket: RoutedSocket, to: &str) -> Option<u32> {
    routed(snapshot, socket, to).map(|route| route.ifindex)
}

fn bound_to(source: &str) -> RoutedSocket {
    RoutedSocket {
        source: Addr::from(ip(source)),
        ..RoutedSocket::PLAIN
    }
}

#[test]
fn sockets_that_are_bound_to_an_address_have_its_table() {
    let snapshot = with_rules(&[from("10.2.0.5/32", OTHER)], two_ways());
    assert_eq!(
        device(&snapshot, RoutedSocket::PLAIN, "192.0.2.1"),
        Some(ETH0)
    );
    assert_eq!(
        device(&snapshot, bound_to("10.2.0.5"), "192.0.2.1"),
        Some(ETH1)
    );
    assert_eq!(
        device(&snapshot, bound_to("10.1.0.5"), "192.0.2.1"),
        Some(ETH0)
    );
    for socket in [RoutedSocket::PLAIN, bound_to("10.2.0.5")] {
        assert!(routed(&snapshot, socket, "10.2.0.5").unwrap().is_local());
    }
    assert!(rows_of(&snapshot).selectors[1].is_none());
}

#[test]
fn marked_sockets_have_another_table_or_all_others_do() {
    let fwmark = || vec![RuleAttribute::FwMark(0x10), RuleAttribute::FwMask(0xf0)];
    let marked = |mark| RoutedSocket {
        mark,
        ..RoutedSocket::PLAIN
    };
    let by_mark = with_rules(&[rule(OTHER, fwmark())], two_ways());
    assert_eq!(device(&by_mark, marked(0x1f), "192.0.2.1"), Some(ETH1));
    assert_eq!(device(&by_mark, marked(0x2f), "192.0.2.1"), Some(ETH0));
    // As wg-quick does: all but its own, unless `main` has more than a default route.
    let mut all_others = rule(OTHER, vec![RuleAttribute::FwMark(51820)]);
    all_others.header.flags = RuleFlags::Invert;
    let passes = vec![RuleAttribute::SuppressPrefixLen(0)];
    let mut routes = two_ways();
    routes.push(unicast("10.9.0.0/16", ETH0));
    let tunnel = with_rules(&[rule(TABLE_MAIN, passes), all_others], routes);
    assert_eq!(
        device(&tunnel, RoutedSocket::PLAIN, "192.0.2.1"),
        Some(ETH1)
    );
    assert_eq!(device(&tunnel, RoutedSocket::PLAIN, "10.9.0.1"), Some(ETH0));
    assert_eq!(device(&tunnel, marked(51820), "192.0.2.1"), Some(ETH0));
}

#[test]
fn users_have_a_table() {
    let range = RuleUidRange {
        start: 1000,
        end: 1999,
    };
    let snapshot = with_rules(
        &[rule(OTHER, vec![RuleAttribute::UidRange(range)])],
        two_ways(),
    );
    let of = |uid| RoutedSocket {
        uid,
        ..RoutedSocket::PLAIN
    };
    assert_eq!(device(&snapshot, of(1500), "192.0.2.1"), Some(ETH1));
    assert_eq!(device(&snapshot, of(2000), "192.0.2.1"), Some(ETH0));
}

#[test]
fn a_rule_may_be_for_some_destinations() {
    let mut to = rule(OTHER, vec![RuleAttribute::Destination(ip("10.9.0.0"))]);
    to.header.dst_len = 16;
    let snapshot = with_rules(&[to], two_ways());
    assert_eq!(
        device(&snapshot, RoutedSocket::PLAIN, "10.9.1.1"),
        Some(ETH1)
    );
    assert_eq!(
        device(&snapshot, RoutedSocket::PLAIN, "10.8.1.1"),
        Some(ETH0)
    );
}

#[test]
fn a_rule_may_fail_what_it_is_for() {
    let mut refused = from("10.2.0.5/32", 0);
    refused.header.action = RuleAction::Prohibit;
    let snapshot = with_rules(&[refused], two_ways());
    let errno = |socket| routed(&snapshot, socket, "192.0.2.1").unwrap().errno();
    assert_eq!(errno(bound_to("10.2.0.5")), libc::EACCES);
    assert_eq!(
        device(&snapshot, RoutedSocket::PLAIN, "192.0.2.1"),
        Some(ETH0)
    );
}

#[test]
fn rules_for_packets_that_enter_do_not_count() {
    let iif = |name: &str| rule(OTHER, vec![RuleAttribute::Iifname(name.to_owned())]);
    let forwarded = with_rules(&[iif("eth1")], two_ways());
    assert_eq!(
        device(&forwarded, RoutedSocket::PLAIN, "192.0.2.1"),
        Some(ETH0)
    );
    let own = with_rules(&[iif("lo")], two_ways());
    assert_eq!(device(&own, RoutedSocket::PLAIN, "192.0.2.1"), Some(ETH1));
}

#[test]
fn the_pod_s_own_return_route_leads_no_application_elsewhere() {
    let snapshot = with_rules(&[rule(133, vec![RuleAttribute::FwMark(1337)])], two_ways());
    let own = ReturnRoute {
        mark: 1337,
        table: 133,
    };
    assert!(rows_of(&snapshot).selectors[0].is_some());
    assert!(snapshot.rows(COOKIE, &[], Some(own), MAX_ROUTES).selectors[0].is_none());
}

#[test]
fn with_other_rules_everything_is_reachable() {
    let blackhole = FlatRoute {
        kind: RouteKind::Blackhole,
        ..unicast("0.0.0.0/0", 0)
    };
    let routes = vec![blackhole, unicast("fd00::/8", ETH0)];
    let mut by_tos = rule(OTHER, Vec::new());
    by_tos.header.tos = 8;
    let mut elsewhere = rule(OTHER, Vec::new());
    elsewhere.header.action = RuleAction::Goto;
    let with_prefix = |length| {
        let mut message = from("10.2.0.5/32", OTHER);
        message.header.dst_len = length;
        message
    };
    for unclear in [
        by_tos,
        elsewhere,
        with_prefix(8),
        rule(OTHER, vec![RuleAttribute::L3MDev(true)]),
        rule(OTHER, vec![RuleAttribute::TunId(7)]),
    ] {
        let snapshot = with_rules(std::slice::from_ref(&unclear), routes.clone());
        let reachable = row(&snapshot, "0.0.0.0/0").unwrap();
        assert!(
            reachable.is_unicast() && reachable.ifindex == 0,
            "{unclear:?}"
        );
        assert_eq!(IpAddr::from(reachable.source), ip("10.1.0.5"));
        // The other family has no such rule.
        assert_eq!(row(&snapshot, "::/0"), None);
        // A default route that exists stays.
        let snapshot = with_rules(&[unclear], vec![unicast("0.0.0.0/0", ETH1)]);
        assert_eq!(row(&snapshot, "0.0.0.0/0").unwrap().ifindex, ETH1);
    }
}

#[test]
fn routes_that_decide_nothing_are_not_looked_up_without_end() {
    let mut rules = Vec::new();
    let mut routes = vec![unicast("0.0.0.0/0", ETH0)];
    for table in 100..108 {
        let mut to = rule(table, vec![RuleAttribute::Destination(ip("10.9.0.0"))]);
        to.header.dst_len = 32;
        rules.push(to);
        let elsewhere = (0..1100).map(|at| format!("10.{table}.{}.{}/32", at / 250, at % 250));
        routes.extend(elsewhere.map(|to| in_table(table, unicast(&to, ETH1))));
    }
    let snapshot = with_rules(&rules, routes);
    assert!(rows_of(&snapshot).note.is_some());
    assert!(row(&snapshot, "0.0.0.0/0").unwrap().is_unicast());
}

#[test]
fn a_pod_with_more_selectors_keeps_its_addresses() {
    let rules: Vec<_> = (1..=5)
        .map(|number| from(&format!("10.2.0.{number}/32"), OTHER))
        .collect();
    let snapshot = with_rules(&rules[..4], two_ways());
    assert_eq!(
        device(&snapshot, bound_to("10.2.0.4"), "192.0.2.1"),
        Some(ETH1)
    );
    let snapshot = with_rules(&rules, two_ways());
    assert!(row(&snapshot, "10.2.0.5/32").unwrap().is_local());
    assert_eq!(row(&snapshot, "0.0.0.0/0").unwrap().ifindex, 0);
    assert!(rows_of(&snapshot).note.unwrap().contains("policy routing"));
}

#[test]
fn views_count_together() {
    let mut routes = two_ways();
    let many = (0..MAX_ROUTES / 2).map(|n| format!("10.{}.{}.1/32", 100 + n / 250, n % 250));
    routes.extend(many.map(|net| unicast(&net, ETH0)));
    let snapshot = with_rules(&[from("10.2.0.5/32", OTHER)], routes.clone());
    assert_eq!(rows_of(&snapshot).rows.len(), 3);
    let one_view = with_rules(&[], routes);
    assert!(rows_of(&one_view).rows.len() > MAX_ROUTES / 2);
}

#[test]
fn ipv6_has_rules_of_its_own() {
    let mut message = from("fd01::5/128", OTHER);
    message.header.family = AddressFamily::Inet6;
    let mut snapshot = pod(vec![
        unicast("::/0", ETH0),
        in_table(OTHER, unicast("::/0", ETH1)),
        unicast("0.0.0.0/0", LO),
    ]);
    let usual = |table| {
        let mut message = rule(table, Vec::new());
        message.header.family = AddressFamily::Inet6;
        message
    };
    for rule in [usual(TABLE_LOCAL), message, usual(TABLE_MAIN)] {
        snapshot.rules.add(&rule, Some("lo"));
    }
    assert_eq!(
        device(&snapshot, RoutedSocket::PLAIN, "2001:db8::1"),
        Some(ETH0)
    );
    assert_eq!(
        device(&snapshot, bound_to("fd01::5"), "2001:db8::1"),
        Some(ETH1)
    );
    let selectors = rows_of(&snapshot).selectors;
    assert!(selectors[0].is_none() && selectors[1].is_some());
    assert_eq!(row_in_view(&snapshot, 1, "::/0").unwrap().ifindex, ETH1);
    assert_eq!(Family::V6 as u32, 6);
}
