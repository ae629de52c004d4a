//! The outbound table of docs/semantics.md, row by row.

use super::{
    ANY, ANY_V4, APP, Fixture, LO2, POD, PROXY, SECOND, VIP, default_policy, dial, expect, port_of,
    v6,
};
use crate::{
    addr::Addr,
    decide::{Verdict, outbound},
    rule::Rule,
};

#[test]
fn app_to_off_pod() {
    expect(APP, ANY, VIP, 80, 15001, Rule::AllOutbound);
    expect(APP, POD, VIP, 80, 15001, Rule::AllOutbound);
    expect(APP, ANY, VIP, 15001, 15001, Rule::AllOutbound);
    expect(APP, ANY, v6(9), 80, 15001, Rule::AllOutbound);
}

#[test]
fn before_the_sidecar_listens_only_its_outbound_port_is_bypassed() {
    let tables = Fixture {
        before_sidecar: true,
        ..Fixture::default()
    };
    let decide = |owner, destination, port| {
        let conn = dial(owner, ANY, destination, port);
        let decision = outbound(&default_policy(), &conn, &tables);
        (port_of(decision), decision.rule)
    };
    assert_eq!(decide(APP, VIP, 80), (0, Rule::BeforeSidecar));
    // The validation container connects like this and must still be redirected.
    assert_eq!(decide(PROXY, LO2, 80), (15006, Rule::ProxyUidLocal));
    assert_eq!(decide(PROXY, VIP, 80), (0, Rule::ProxyUid));
    let broadcast = Addr::v4([255, 255, 255, 255]);
    assert_eq!(decide(APP, broadcast, 80), (u16::MAX, Rule::NoRoute));
}

#[test]
fn app_to_its_own_pod() {
    for destination in [
        Addr::LOOPBACK_V4,
        LO2,
        Addr::SELF_V4,
        ANY_V4,
        ANY,
        Addr::LOOPBACK_V6,
        POD,
        SECOND,
        v6(2),
    ] {
        expect(APP, ANY, destination, 80, 0, Rule::NotProxyUidLocal);
    }
}

#[test]
fn app_bound_to_loopback() {
    expect(APP, Addr::LOOPBACK_V4, POD, 80, 0, Rule::NotProxyUidLocal);
    expect(APP, Addr::SELF_V4, POD, 80, 0, Rule::SelfSource);
    for source in [Addr::LOOPBACK_V4, Addr::SELF_V4] {
        let dial = dial(APP, source, VIP, 80);
        let decision = outbound(&default_policy(), &dial, &Fixture::default());
        assert_eq!(decision.verdict, Verdict::Fail { errno: 22 });
        assert_eq!(decision.rule, Rule::LoopbackSource);
    }
    // IPv6 differs: the kernel does not reject the source, and the rules redirect.
    expect(APP, Addr::LOOPBACK_V6, v6(9), 80, 15001, Rule::AllOutbound);
    expect(APP, Addr::SELF_V6, v6(9), 80, 15001, Rule::AllOutbound);
}

#[test]
fn proxy_off_pod_and_loopback() {
    expect(PROXY, ANY, VIP, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, Addr::LOOPBACK_V4, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, Addr::LOOPBACK_V6, 80, 0, Rule::ProxyUid);
    expect(PROXY, ANY, ANY_V4, 80, 0, Rule::ProxyUid);
}

#[test]
fn proxy_to_its_own_pod() {
    for (destination, port) in [
        (LO2, 80),
        (POD, 80),
        (POD, 15021),
        (SECOND, 80),
        (v6(2), 80),
    ] {
        expect(PROXY, ANY, destination, port, 15006, Rule::ProxyUidLocal);
    }
    expect(PROXY, ANY, POD, 15008, 0, Rule::ProxyUid);
    expect(PROXY, Addr::SELF_V4, POD, 80, 0, Rule::SelfSource);
    expect(PROXY, Addr::SELF_V6, v6(2), 80, 0, Rule::SelfSource);
    // Istio's validation container does exactly this.
    expect(
        PROXY,
        Addr::LOOPBACK_V4,
        Addr::SELF_V4,
        15002,
        15006,
        Rule::ProxyUidLocal,
    );
    // Unbound: IPv4 gets 127.0.0.1 as its source, IPv6 gets ::6 itself.
    expect(PROXY, ANY, Addr::SELF_V4, 80, 15006, Rule::ProxyUidLocal);
    expect(PROXY, ANY, Addr::SELF_V6, 80, 0, Rule::SelfSource);
}

#[test]
fn unspecified_means_the_bound_address_in_ipv4_only() {
    let own = outbound(
        &default_policy(),
        &dial(PROXY, POD, ANY_V4, 80),
        &Fixture::default(),
    );
    assert_eq!(
        own.verdict,
        Verdict::Redirect {
            port: 15006,
            source: POD,
            dialed: POD
        }
    );
    expect(PROXY, v6(2), ANY, 80, 0, Rule::ProxyUid);
}

#[test]
fn names_and_sources() {
    let decide = |owner, source, destination| {
        outbound(
            &default_policy(),
            &dial(owner, source, destination, 80),
            &Fixture::default(),
        )
        .verdict
    };
    let redirect = |port, source, dialed| Verdict::Redirect {
        port,
        source,
        dialed,
    };
    assert_eq!(decide(APP, ANY, VIP), redirect(15001, POD, VIP));
    assert_eq!(decide(APP, SECOND, VIP), redirect(15001, SECOND, VIP));
    assert_eq!(decide(APP, ANY, v6(9)), redirect(15001, v6(2), v6(9)));
    assert_eq!(decide(PROXY, ANY, SECOND), redirect(15006, SECOND, SECOND));
    assert_eq!(
        decide(PROXY, ANY, LO2),
        redirect(15006, Addr::LOOPBACK_V4, LO2)
    );
}
