//! The lists of a policy, and routes known from a manifest.

use std::net::IpAddr;

use sidetrack_common::{
    addr::Addr,
    decide::Tables,
    pod::{Route, RouteKind},
    policy::List,
};

use super::{KnownRoutes, ListTables, Routes};
use crate::policy::{InboundPorts, OutboundRanges, Policy};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn addr(text: &str) -> Addr {
    ip(text).into()
}

fn tables(policy: &Policy) -> ListTables<'_, KnownRoutes> {
    ListTables {
        policy,
        routes: KnownRoutes::default(),
        before_sidecar: false,
    }
}

/// A policy whose lists have no entry in common.
fn policy() -> Policy {
    Policy {
        excluded_outbound_ports: crate::spans(vec![1, 2, 3]),
        included_outbound_ports: crate::spans(vec![11, 12, 13]),
        inbound: InboundPorts::Only(crate::spans(vec![21, 22, 23])),
        proxy_uids: vec![1, 2, 3],
        proxy_gids: vec![11, 12, 13],
        included_groups: Some(vec![21, 22, 23]),
        excluded_groups: vec![31, 32, 33],
        excluded_ranges: ["10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16"]
            .map(|net| net.parse().expect("a range"))
            .to_vec(),
        outbound: OutboundRanges::Only(
            ["fd01::/16", "fd02::/16", "fd03::/16"]
                .map(|net| net.parse().expect("a range"))
                .to_vec(),
        ),
        ..Policy::default()
    }
}

/// Every list answers for its own entries, with their positions, and for no others.
#[test]
fn entries_are_found_in_their_own_list_only() {
    let policy = policy();
    let tables = tables(&policy);
    for list in List::ALL {
        for port in 0..40_u16 {
            let base = match list {
                List::OutPortExcluded => 1,
                List::OutPortIncluded => 11,
                List::InPort => 21,
                _ => 100,
            };
            let position = port.checked_sub(base).filter(|position| *position < 3);
            assert_eq!(
                tables.port(list, port),
                position.map(u32::from),
                "{list:?} {port}"
            );
        }
        for id in 0..40_u32 {
            let base = match list {
                List::MoreProxyUids => 1,
                List::MoreProxyGids => 11,
                List::GroupIncluded => 21,
                List::GroupExcluded => 31,
                _ => 100,
            };
            let position = id.checked_sub(base).filter(|position| *position < 3);
            assert_eq!(tables.owner(list, id), position, "{list:?} {id}");
        }
        for (text, owner, position) in [
            ("10.1.0.1", List::RangeExcluded, 0),
            ("10.2.255.255", List::RangeExcluded, 1),
            ("10.3.0.0", List::RangeExcluded, 2),
            ("fd01::1", List::RangeIncluded, 0),
            ("fd03::", List::RangeIncluded, 2),
        ] {
            let expected = (list == owner).then_some(position);
            assert_eq!(tables.range(list, addr(text)), expected, "{list:?} {text}");
        }
        assert_eq!(tables.range(list, addr("10.4.0.0")), None, "{list:?}");
    }
}

#[test]
fn lists_of_a_policy_that_captures_all() {
    let policy = Policy {
        inbound: InboundPorts::AllExcept(crate::spans(vec![7])),
        ..Policy::default()
    };
    let all = tables(&policy);
    assert_eq!(all.port(List::InPort, 7), Some(0));
    assert_eq!(all.range(List::RangeIncluded, addr("10.0.0.1")), None);
    assert_eq!(all.owner(List::GroupIncluded, 0), None);
    let policy = Policy {
        inbound: InboundPorts::None,
        ..Policy::default()
    };
    assert_eq!(tables(&policy).port(List::InPort, 7), None);
}

#[test]
fn the_sidecar_state_is_passed_on() {
    let policy = Policy::default();
    for before_sidecar in [true, false] {
        let tables = ListTables {
            before_sidecar,
            ..tables(&policy)
        };
        assert_eq!(tables.before_sidecar(), before_sidecar);
    }
}

#[test]
fn known_routes() {
    let own = ["10.244.0.7", "fd00::7"];
    let routes = KnownRoutes {
        own: own.map(ip).to_vec(),
    };
    let (local, unicast) = (RouteKind::Local, RouteKind::Unicast);
    for (destination, kind, source) in [
        // Local routes of 127.0.0.0/8 prefer 127.0.0.1, the others the address they are for.
        ("127.0.0.1", local, "127.0.0.1"),
        ("127.0.0.6", local, "127.0.0.1"),
        ("::1", local, "::1"),
        ("::6", local, "::6"),
        ("10.244.0.7", local, "10.244.0.7"),
        ("fd00::7", local, "fd00::7"),
        ("10.244.0.8", unicast, "10.244.0.7"),
        ("192.0.2.1", unicast, "10.244.0.7"),
        ("fd00::8", unicast, "fd00::7"),
        ("::7", unicast, "fd00::7"),
    ] {
        let expected = Route {
            kind: kind as u32,
            source: addr(source),
            ..Route::NONE
        };
        assert_eq!(routes.route(addr(destination)), expected, "{destination}");
        let policy = Policy::default();
        let tables = ListTables {
            policy: &policy,
            routes: routes.clone(),
            before_sidecar: false,
        };
        assert_eq!(tables.route(addr(destination)), expected, "{destination}");
    }
    let unknown = KnownRoutes::default().route(addr("192.0.2.1"));
    assert_eq!(unknown.kind, unicast as u32);
    assert_eq!(unknown.source, Addr::UNSPECIFIED);
}
