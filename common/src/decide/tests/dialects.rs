//! Rules of older Istio versions.

use super::{
    ANY, APP, Fixture, LO2, POD, PROXY, REMOTE, VIP, default_policy, dial, port_of, syn_from,
    with_exempt_ports,
};
use crate::{
    addr::Addr,
    decide::{inbound, outbound},
    policy::{DIALECT_LOCAL_CAPTURED, DIALECT_SELF_EXEMPT, DIALECT_SSH_IN, InboundMode, Policy},
    rule::Rule,
};

#[test]
fn istio_up_to_1_2_captures_everything_over_lo() {
    let mut policy = default_policy();
    policy.dialect = DIALECT_LOCAL_CAPTURED;
    policy.inbound_port = 15001;
    let decide = |owner, source, destination| {
        let decision = outbound(
            &policy,
            &dial(owner, source, destination, 80),
            &Fixture::default(),
        );
        (port_of(decision), decision.rule)
    };
    for owner in [APP, PROXY] {
        for destination in [POD, LO2, Addr::SELF_V4] {
            assert_eq!(
                decide(owner, ANY, destination),
                (15001, Rule::LocalCaptured)
            );
        }
    }
    assert_eq!(
        decide(PROXY, Addr::SELF_V4, POD),
        (15001, Rule::LocalCaptured)
    );
    assert_eq!(decide(APP, ANY, Addr::LOOPBACK_V4), (0, Rule::Loopback));
    assert_eq!(decide(PROXY, ANY, Addr::LOOPBACK_V4), (0, Rule::ProxyUid));
    assert_eq!(decide(PROXY, ANY, VIP), (0, Rule::ProxyUid));
    assert_eq!(decide(APP, ANY, VIP), (15001, Rule::AllOutbound));
}

#[test]
fn exempt_ports_by_dialect() {
    let (mut policy, tables) = with_exempt_ports();
    policy.dialect = DIALECT_SELF_EXEMPT | DIALECT_SSH_IN;
    let decide = |policy: &Policy, port| inbound(policy, &syn_from(REMOTE, port), &tables).rule;
    assert_eq!(decide(&policy, 22), Rule::SshPort);
    assert_eq!(decide(&policy, 15008), Rule::AllInbound);
    let own = outbound(&policy, &dial(PROXY, ANY, POD, 15008), &tables);
    assert_eq!(own.rule, Rule::ProxyUidLocal);
    // Only with -b *.
    policy.inbound = InboundMode::Listed as u8;
    assert_eq!(decide(&policy, 22), Rule::InNoMatch);
}
