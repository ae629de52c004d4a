//! Connections that fail or stay direct because of their route, device or family.

use super::{ANY, APP, Fixture, PROXY, VIP, default_policy, dial, v6};
use crate::{
    addr::Addr,
    decide::{Verdict, outbound},
    rule::Rule,
};

#[test]
fn errors_come_first() {
    const ENETUNREACH: i32 = 101;
    let fails = Verdict::Fail { errno: ENETUNREACH };
    let tables = Fixture {
        no_default_route: true,
        ..Fixture::default()
    };
    for destination in [VIP, v6(9)] {
        let decision = outbound(&default_policy(), &dial(APP, ANY, destination, 80), &tables);
        assert_eq!((decision.verdict, decision.rule), (fails, Rule::NoRoute));
        let mut led = dial(APP, ANY, destination, 80);
        led.routing_header = true;
        let decision = outbound(&default_policy(), &led, &tables);
        assert_eq!(decision.rule, Rule::NoRoute);
        // For a connection that no rule captures, the kernel reports the error itself.
        let proxy = outbound(
            &default_policy(),
            &dial(PROXY, ANY, destination, 80),
            &tables,
        );
        assert_eq!(proxy.rule, Rule::ProxyUid);
    }
    for destination in [[224, 0, 0, 1], [239, 1, 2, 3], [255, 255, 255, 255]] {
        let decision = outbound(
            &default_policy(),
            &dial(APP, ANY, Addr::v4(destination), 80),
            &Fixture::default(),
        );
        assert_eq!((decision.verdict, decision.rule), (fails, Rule::NoRoute));
        let bound = dial(APP, Addr::LOOPBACK_V4, Addr::v4(destination), 80);
        let decision = outbound(&default_policy(), &bound, &Fixture::default());
        assert_eq!(decision.rule, Rule::NoRoute);
    }
}

/// The address of a network's broadcasts has such a route.
#[test]
fn only_datagrams_go_to_groups() {
    let tables = Fixture {
        group_route: true,
        ..Fixture::default()
    };
    let decision = outbound(&default_policy(), &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::NoRoute);
}

#[test]
fn a_routing_header_is_refused_unless_the_owner_is_untouched_anyway() {
    let rule = |owner, destination| {
        let mut conn = dial(owner, ANY, destination, 80);
        conn.routing_header = true;
        let decision = outbound(&default_policy(), &conn, &Fixture::default());
        let refused = matches!(decision.verdict, Verdict::Fail { errno: 111 });
        assert_eq!(refused, decision.rule == Rule::RoutingHeader);
        decision.rule
    };
    assert_eq!(rule(APP, v6(9)), Rule::RoutingHeader);
    assert_eq!(rule(APP, Addr::LOOPBACK_V6), Rule::RoutingHeader);
    assert_eq!(rule(PROXY, v6(9)), Rule::ProxyUid);
}

#[test]
fn a_captured_link_local_destination_is_refused() {
    let link_local = Addr::from_v6_be([0xfe80_0000_u32.to_be(), 0, 0, 9_u32.to_be()]);
    let rule = |owner, destination| {
        outbound(
            &default_policy(),
            &dial(owner, ANY, destination, 80),
            &Fixture::default(),
        )
        .rule
    };
    assert_eq!(rule(APP, link_local), Rule::LinkLocal);
    assert_eq!(rule(PROXY, link_local), Rule::ProxyUid);
    // The route of another interface may be the one that was found.
    let tables = Fixture {
        device_excluded: true,
        ..Fixture::default()
    };
    for (owner, rule) in [(APP, Rule::LinkLocal), (PROXY, Rule::ProxyUid)] {
        let conn = dial(owner, ANY, link_local, 80);
        assert_eq!(outbound(&default_policy(), &conn, &tables).rule, rule);
    }
    // Nor does an address of the pod say that the connection stays in it.
    let own = Fixture {
        link_local_own: true,
        ..Fixture::default()
    };
    let conn = dial(APP, ANY, link_local, 80);
    assert_eq!(
        outbound(&default_policy(), &conn, &own).rule,
        Rule::LinkLocal
    );
}

#[test]
fn nothing_is_known_in_a_pod_with_too_many_addresses() {
    let unknown = Fixture {
        unknown: true,
        ..Fixture::default()
    };
    for owner in [APP, PROXY] {
        let decision = outbound(&default_policy(), &dial(owner, ANY, VIP, 80), &unknown);
        assert_eq!(decision.rule, Rule::TooManyAddresses);
        let loopback = dial(owner, ANY, Addr::LOOPBACK_V4, 80);
        let decision = outbound(&default_policy(), &loopback, &unknown);
        assert_eq!(decision.verdict, Verdict::Untouched);
    }
}

#[test]
fn uncaptured_family() {
    let mut conn = dial(APP, ANY, v6(9), 80);
    conn.captured_family = false;
    let decision = outbound(&default_policy(), &conn, &Fixture::default());
    assert_eq!(decision.rule, Rule::FamilyNotCaptured);
}

/// `__mkroute_output` checks the source only after a device is found, and a multicast destination is
/// rejected before that.
#[test]
fn a_loopback_source_matters_only_on_a_route_with_a_device() {
    let without_route = Fixture {
        no_default_route: true,
        ..Fixture::default()
    };
    let decide = |destination, tables: &Fixture| {
        let conn = dial(APP, Addr::LOOPBACK_V4, destination, 80);
        outbound(&default_policy(), &conn, tables).rule
    };
    assert_eq!(decide(VIP, &Fixture::default()), Rule::LoopbackSource);
    assert_eq!(decide(VIP, &without_route), Rule::NoRoute);
    let multicast = Addr::v4([224, 0, 0, 1]);
    assert_eq!(decide(multicast, &Fixture::default()), Rule::NoRoute);
}
