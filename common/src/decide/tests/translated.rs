//! Connections of the proxy whose destination another program has translated.

use super::{ANY, Fixture, LO2, POD, SECOND, VIP, default_policy};
use crate::{
    addr::Addr,
    decide::translated,
    policy::{DIALECT_SELF_EXEMPT, DIALECT_TUNNEL_OUT, Policy},
};

fn reaches_inbound_port(policy: &Policy, source: Addr, destination: Addr, port: u16) -> bool {
    translated(policy, source, destination, port, &Fixture::default())
}

#[test]
fn to_the_pod_itself() {
    let policy = default_policy();
    for own in [POD, SECOND, LO2] {
        assert!(reaches_inbound_port(&policy, POD, own, 80), "{own}");
    }
    assert!(!reaches_inbound_port(&policy, ANY, Addr::LOOPBACK_V4, 80));
    assert!(!reaches_inbound_port(&policy, POD, VIP, 80));
}

#[test]
fn exempt_by_dialect() {
    let policy = default_policy();
    let without = |bit: u8| Policy {
        dialect: policy.dialect & !bit,
        ..policy
    };
    let tunnel = policy.tunnel_port;
    assert!(!reaches_inbound_port(&policy, POD, POD, tunnel));
    assert!(reaches_inbound_port(
        &without(DIALECT_TUNNEL_OUT),
        POD,
        POD,
        tunnel
    ));
    for own in [Addr::SELF_V4, Addr::SELF_V6] {
        assert!(!reaches_inbound_port(&policy, own, POD, 80));
        assert!(reaches_inbound_port(
            &without(DIALECT_SELF_EXEMPT),
            own,
            POD,
            80
        ));
    }
}
