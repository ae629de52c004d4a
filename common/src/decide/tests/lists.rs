//! Port lists and ranges of outbound rules.

use super::{ANY, APP, Fixture, LO2, POD, PROXY, VIP, default_policy, dial, port_of, with};
use crate::{addr::Addr, decide::outbound, policy::List, rule::Rule};

#[test]
fn exclusions_in_order() {
    let fixture = Fixture {
        device_excluded: true,
        ..Fixture::default()
    };
    let decision = outbound(&default_policy(), &dial(APP, ANY, VIP, 80), &fixture);
    assert_eq!(decision.rule, Rule::OutInterface);

    let (policy, tables) = with(
        List::OutPortExcluded,
        Fixture {
            ports: [((List::OutPortExcluded as u16, 80), 3)].into(),
            ..Fixture::default()
        },
        |_| {},
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!((decision.rule, decision.index), (Rule::OutPortExcluded, 3));
    // Before the owner rules: the proxy's calls to its own pod on that port are untouched too.
    let decision = outbound(&policy, &dial(PROXY, ANY, POD, 80), &tables);
    assert_eq!(decision.rule, Rule::OutPortExcluded);

    let (policy, tables) = with(
        List::RangeExcluded,
        Fixture {
            ranges: vec![(List::RangeExcluded, VIP)],
            ..Fixture::default()
        },
        |policy| policy.lists |= List::OutPortIncluded.bit(),
    );
    let decision = outbound(&policy, &dial(APP, ANY, VIP, 80), &tables);
    assert_eq!(decision.rule, Rule::RangeExcluded);
}

#[test]
fn inclusions() {
    let (policy, tables) = with(
        List::OutPortIncluded,
        Fixture {
            ports: [((List::OutPortIncluded as u16, 443), 0)].into(),
            ..Fixture::default()
        },
        |policy| policy.outbound_all = 0,
    );
    let decide = |port| outbound(&policy, &dial(APP, ANY, VIP, port), &tables);
    assert_eq!(port_of(decide(443)), 15001);
    assert_eq!(decide(443).rule, Rule::OutPortIncluded);
    assert_eq!(decide(80).rule, Rule::OutNoMatch);

    let (policy, tables) = with(
        List::RangeIncluded,
        Fixture {
            ranges: vec![(List::RangeIncluded, VIP)],
            ..Fixture::default()
        },
        |policy| policy.outbound_all = 0,
    );
    let decide = |destination| outbound(&policy, &dial(APP, ANY, destination, 80), &tables);
    assert_eq!(decide(VIP).rule, Rule::RangeIncluded);
    assert_eq!(decide(Addr::v4([1, 1, 1, 1])).rule, Rule::OutNoMatch);
}

#[test]
fn a_loopback_range_among_the_included_lifts_rule_4b() {
    let tables = Fixture {
        ranges: vec![(List::RangeIncluded, LO2)],
        ..Fixture::default()
    };
    let mut policy = default_policy();
    policy.loopback_included = 1;
    policy.outbound_all = 0;
    policy.lists = List::RangeIncluded.bit();
    let decide =
        |owner, destination| outbound(&policy, &dial(owner, ANY, destination, 80), &tables).rule;
    assert_eq!(decide(APP, LO2), Rule::RangeIncluded);
    assert_eq!(decide(APP, POD), Rule::OutNoMatch);
    assert_eq!(decide(APP, Addr::LOOPBACK_V4), Rule::Loopback);
    assert_eq!(decide(PROXY, POD), Rule::ProxyUidLocal);
}

#[test]
fn a_wider_loopback_range() {
    let mut policy = default_policy();
    policy.loopback_v4 = [127, 0, 0, 0];
    policy.loopback_v4_prefix = 8;
    let decision = outbound(&policy, &dial(PROXY, ANY, LO2, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::ProxyUid);
    let decision = outbound(&policy, &dial(PROXY, ANY, POD, 80), &Fixture::default());
    assert_eq!(decision.rule, Rule::ProxyUidLocal);
}
