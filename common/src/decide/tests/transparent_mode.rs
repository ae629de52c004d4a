//! Mode TPROXY. Measured with istio-iptables' rules of Istio 1.28 on kernel 6.18.

use super::{
    APP, Addr, Decision, Fixture, LO2, List, Outbound, Owner, POD, PROXY, Policy, Rule, VIP,
    Verdict, default_policy, dial, outbound, v6,
};
use crate::policy::DIALECT_TUNNEL_IN;

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
