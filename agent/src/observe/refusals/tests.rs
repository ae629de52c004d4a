use std::collections::BTreeMap;

use bytemuck::Zeroable as _;
use sidetrack_common::{event::Event, rule::Rule};

use super::{LastRefusals, cure};
use crate::observe::events::Clocks;
use sidetrack_datapath::kernel::events::boot_time;

#[test]
fn the_latest_come_first_and_the_unknown_last() {
    let now = boot_time();
    let event = |rule: Rule, seconds: u64| {
        let event = Event {
            at: now - seconds * 1_000_000_000,
            rule: rule as u32,
            errno: 111,
            ..Event::zeroed()
        };
        ((7, rule as u32), event)
    };
    let last = LastRefusals {
        by_pod_and_rule: [event(Rule::NoRoute, 5), event(Rule::SidecarRefused, 2)].into(),
        clocks: Clocks::now(),
    };
    let counts = BTreeMap::from([
        (Rule::NoRoute as u32, 1),
        (Rule::NoListener as u32, 9),
        (Rule::SidecarRefused as u32, 3),
    ]);
    let all = last.of(7, &counts, "a/b");
    let shown: Vec<_> = all
        .iter()
        .map(|refusals| {
            (
                refusals.reason.as_str(),
                refusals.count,
                refusals.seconds_ago,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("sidecar-refused", 3, Some(2)),
            ("no-route", 1, Some(5)),
            ("no-listener", 9, None)
        ]
    );
    assert!(last.of(8, &BTreeMap::new(), "a/c").is_empty());
}

#[test]
fn every_refusal_has_a_cure() {
    for rule in Rule::ALL.iter().filter(|rule| rule.class().is_refusal()) {
        assert!(!cure(*rule).starts_with("see"), "{}", rule.name());
    }
}
