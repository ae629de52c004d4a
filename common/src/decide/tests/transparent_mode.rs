//! Mode TPROXY. Measured with istio-iptables' rules of Istio 1.28 on kernel 6.18.

use super::{
    APP, Addr, Decision, Fixture, LO2, List, Outbound, Owner, POD, PROXY, Policy, Rule, VIP,
    Verdict, default_policy, dial, outbound, v6,
};
use crate::policy::{DIALECT_TUNNEL_IN, DIALECT_TUNNEL_OUT, NO_ID};

const MARK: u32 = 1337;
const CLIENT: Addr = Addr::v4([10, 9, 9, 9]);
const ANY: Addr = Addr::UNSPECIFIED;

/// The sidecar of TPROXY pods runs as root, with the proxy's group.
const SIDECAR: Owner = Owner { uid: 0, gid: 1337 };

fn policy() -> Policy {
    Policy {
        transparent_mark: MARK,
        dialect: default_policy().dialect & !DIALECT_TUNNEL_IN,
        ..default_policy()
    }
}

fn decide(conn: &Outbound) -> Decision {
    outbound(&policy(), conn, &Fixture::default())
}

fn marked(owner: Owner, source: Addr, destination: Addr) -> Outbound {
    Outbound {
        mark: MARK,
        ..dial(owner, source, destination, 80)
    }
}

fn assigned(dialed: Addr) -> Verdict {
    Verdict::Assign {
        port: 15006,
        dialed,
    }
}

#[test]
fn the_client_s_address_leads_to_the_app_by_lo() {
    for owner in [SIDECAR, PROXY] {
        for (source, destination) in [(CLIENT, POD), (CLIENT, Addr::LOOPBACK_V4), (v6(99), v6(2))] {
            let decision = decide(&marked(owner, source, destination));
            assert_eq!(
                decision.verdict,
                Verdict::BindToLoopback,
                "{owner:?} {source:?}"
            );
            assert_eq!(decision.rule, Rule::Transparent);
        }
    }
}

#[test]
fn from_the_pod_s_own_address_nat_decides() {
    for source in [ANY, POD] {
        let decision = decide(&marked(SIDECAR, source, POD));
        assert_eq!(decision.verdict, Verdict::Untouched);
        let decision = decide(&marked(PROXY, source, POD));
        assert_eq!(decision.rule, Rule::ProxyUidLocal);
    }
}

#[test]
fn another_mark_is_no_mark() {
    let conn = Outbound {
        mark: MARK + 1,
        ..dial(SIDECAR, CLIENT, POD, 80)
    };
    assert_eq!(decide(&conn).verdict, assigned(POD));
}

#[test]
fn off_the_pod_the_mark_means_nothing() {
    let decision = decide(&marked(APP, ANY, VIP));
    assert!(matches!(
        decision.verdict,
        Verdict::Redirect { port: 15001, .. }
    ));
    assert_eq!(decide(&marked(SIDECAR, ANY, VIP)).rule, Rule::ProxyGid);
}

#[test]
fn the_proxy_s_own_calls_reach_its_inbound_port() {
    for destination in [POD, LO2, v6(2)] {
        let decision = decide(&dial(SIDECAR, ANY, destination, 80));
        assert_eq!(decision.verdict, assigned(destination));
        assert_eq!(decision.rule, Rule::TransparentGidLocal);
    }
    // A proxy by its uid is redirected by nat before.
    let decision = decide(&dial(PROXY, ANY, POD, 80));
    assert_eq!(decision.rule, Rule::ProxyUidLocal);
    // But for the tunnel port, which only nat exempts.
    let decision = decide(&dial(PROXY, ANY, POD, 15008));
    assert_eq!(decision.verdict, assigned(POD));
    assert_eq!(decision.rule, Rule::TransparentUidLocal);
}

#[test]
fn everything_else_in_the_pod_is_decided_by_nat() {
    for (owner, source, destination, rule) in [
        (APP, ANY, POD, Rule::NotProxyUidLocal),
        (SIDECAR, ANY, Addr::LOOPBACK_V4, Rule::NotProxyUidLocal),
        (SIDECAR, Addr::SELF_V4, POD, Rule::SelfSource),
        (APP, ANY, VIP, Rule::AllOutbound),
        (SIDECAR, ANY, VIP, Rule::ProxyGid),
    ] {
        assert_eq!(decide(&dial(owner, source, destination, 80)).rule, rule);
    }
}

#[test]
fn inbound_exclusions_hold_for_the_proxy_s_own_calls() {
    let mut fixture = Fixture::default();
    fixture.ports.insert((List::InPort as u16, 80), 0);
    let policy = Policy {
        lists: List::InPort.bit(),
        ..policy()
    };
    let excluded = outbound(&policy, &dial(SIDECAR, ANY, POD, 80), &fixture);
    assert_eq!(excluded.rule, Rule::NotProxyUidLocal);
    let other = outbound(&policy, &dial(SIDECAR, ANY, POD, 81), &fixture);
    assert_eq!(other.verdict, assigned(POD));
}

/// The pod of the tables below: a proxy by uids 1337 and 1338 and by gids 1337 and 1338, the second of each from a list.
fn listed(loopback_included: bool) -> (Policy, Fixture) {
    let policy = Policy {
        lists: List::MoreProxyUids.bit() | List::MoreProxyGids.bit(),
        loopback_included: loopback_included.into(),
        ..policy()
    };
    let owners = [(List::MoreProxyUids, 3), (List::MoreProxyGids, 5)];
    let fixture = Fixture {
        owners: owners
            .iter()
            .map(|(list, position)| ((*list as u16, 1338), *position))
            .collect(),
        ..Fixture::default()
    };
    (policy, fixture)
}

const fn owner(uid: u32, gid: u32) -> Owner {
    Owner { uid, gid }
}

/// Nat redirects the first owner's calls to its own pod, and those of every owner if a loopback range is included. The
/// other calls of the proxy are assigned, under the position of its uid, or else of its gid.
#[test]
fn the_proxy_s_owners_decide_who_assigns() {
    use Rule::{
        NotProxyUidLocal, OutNoMatch, ProxyGidLocal, ProxyUidLocal, TransparentGidLocal,
        TransparentUidLocal,
    };
    for (owner, alone, included) in [
        (owner(1337, 0), (ProxyUidLocal, 0), (ProxyUidLocal, 0)),
        (owner(1338, 0), (TransparentUidLocal, 3), (ProxyUidLocal, 3)),
        (owner(0, 1337), (TransparentGidLocal, 0), (ProxyGidLocal, 0)),
        (owner(0, 1338), (TransparentGidLocal, 5), (ProxyGidLocal, 5)),
        (
            owner(1338, 1337),
            (TransparentUidLocal, 3),
            (ProxyUidLocal, 3),
        ),
        (
            owner(1338, 1338),
            (TransparentUidLocal, 3),
            (ProxyUidLocal, 3),
        ),
        (owner(0, 0), (NotProxyUidLocal, 0), (OutNoMatch, 0)),
        (Owner::UNKNOWN, (NotProxyUidLocal, 0), (OutNoMatch, 0)),
    ] {
        for (loopback_included, expected) in [(false, alone), (true, included)] {
            let (mut policy, fixture) = listed(loopback_included);
            policy.outbound_all = 0;
            let decision = outbound(&policy, &dial(owner, ANY, POD, 80), &fixture);
            assert_eq!(
                (decision.rule, decision.index),
                expected,
                "{owner:?}, loopback included: {loopback_included}"
            );
        }
    }
}

/// Without a list, or without a first uid, other owners are as they are in nat.
#[test]
fn owners_count_only_if_the_policy_has_them() {
    for (owner, proxy_uid, lists, expected) in [
        (owner(1338, 0), 1337, 0, Rule::NotProxyUidLocal),
        (owner(0, 1338), 1337, 0, Rule::NotProxyUidLocal),
        // A gid that is the first of all owners is redirected by nat.
        (owner(0, 1337), NO_ID, 0, Rule::ProxyGidLocal),
        (
            owner(0, 1338),
            NO_ID,
            List::MoreProxyGids.bit(),
            Rule::TransparentGidLocal,
        ),
        (owner(NO_ID, 0), NO_ID, 0, Rule::NotProxyGidLocal),
    ] {
        let (policy, fixture) = listed(false);
        let policy = Policy {
            proxy_uid,
            lists,
            ..policy
        };
        let decision = outbound(&policy, &dial(owner, ANY, POD, 80), &fixture);
        assert_eq!(decision.rule, expected, "{owner:?} {lists}");
    }
}

/// What nat does not redirect of the first owner is assigned: the tunnel port of versions that exempt it, and excluded
/// ports.
#[test]
fn what_nat_exempts_is_assigned() {
    let excluded = List::OutPortExcluded;
    let fixture = Fixture {
        ports: [((excluded as u16, 81), 0), ((excluded as u16, 82), 1)].into(),
        ..Fixture::default()
    };
    let own_rule = Rule::TransparentUidLocal;
    for (port, lists, exempts_tunnel, rule) in [
        (80, excluded.bit(), true, Rule::ProxyUidLocal),
        (81, excluded.bit(), true, own_rule),
        (81, 0, true, Rule::ProxyUidLocal),
        (15008, 0, true, own_rule),
        (15008, 0, false, Rule::ProxyUidLocal),
    ] {
        let mut policy = Policy { lists, ..policy() };
        if !exempts_tunnel {
            policy.dialect &= !DIALECT_TUNNEL_OUT;
        }
        let decision = outbound(&policy, &dial(PROXY, ANY, POD, port), &fixture);
        assert_eq!(decision.rule, rule, "{port} {lists} {exempts_tunnel}");
    }
}

/// What leaves these rules before any of them is compared, whichever process connects, with or without the mark.
#[test]
fn other_connections_are_for_nat() {
    let plain = dial(SIDECAR, CLIENT, POD, 80);
    let excluded_device = Fixture {
        local_excluded: true,
        ..Fixture::default()
    };
    let usual = Fixture::default();
    for (conn, tables, rule) in [
        (
            Outbound {
                captured_family: false,
                ..plain
            },
            &usual,
            Rule::FamilyNotCaptured,
        ),
        (
            Outbound {
                routing_header: true,
                ..plain
            },
            &usual,
            Rule::RoutingHeader,
        ),
        (
            Outbound {
                destination: VIP,
                ..plain
            },
            &usual,
            Rule::ProxyGid,
        ),
        (plain, &excluded_device, Rule::OutInterface),
    ] {
        for mark in [0, MARK] {
            let conn = Outbound { mark, ..conn };
            assert_eq!(outbound(&policy(), &conn, tables).rule, rule, "{conn:?}");
        }
    }
    // From the address of the sidecar's calls, in both families, and to loopback.
    for (source, destination, rule) in [
        (Addr::SELF_V4, POD, Rule::SelfSource),
        (Addr::SELF_V6, v6(2), Rule::SelfSource),
        (CLIENT, Addr::LOOPBACK_V4, Rule::NotProxyUidLocal),
        (v6(99), Addr::LOOPBACK_V6, Rule::NotProxyUidLocal),
    ] {
        let decision = decide(&dial(SIDECAR, source, destination, 80));
        assert_eq!(decision.rule, rule, "{source:?} {destination:?}");
    }
}

/// An unbound socket has the source of its route.
#[test]
fn the_source_of_an_unbound_socket_is_the_route_s() {
    let decision = decide(&dial(SIDECAR, ANY, Addr::SELF_V6, 80));
    assert_eq!(decision.rule, Rule::SelfSource);
    let decision = decide(&dial(SIDECAR, v6(2), Addr::SELF_V6, 80));
    assert_eq!(decision.verdict, assigned(Addr::SELF_V6));
}
