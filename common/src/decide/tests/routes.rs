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
    }
}

#[test]
fn bound_device() {
    let mut conn = dial(APP, ANY, VIP, 80);
    conn.bound_device = 2;
    let decision = outbound(&default_policy(), &conn, &Fixture::default());
    assert_eq!(decision.rule, Rule::BoundDevice);
    assert_eq!(decision.verdict, Verdict::Untouched);
}

#[test]
fn uncaptured_family() {
    let mut conn = dial(APP, ANY, v6(9), 80);
    conn.captured_family = false;
    let decision = outbound(&default_policy(), &conn, &Fixture::default());
    assert_eq!(decision.rule, Rule::FamilyNotCaptured);
}
