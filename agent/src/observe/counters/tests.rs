use sidetrack_common::{count::CountKey, rule::Rule};

use super::{RemovedCounts, Tally, Totals};

fn counter(netns: u64, count: u64) -> (CountKey, u64) {
    counted(netns, Rule::AllOutbound, count)
}

fn counted(netns: u64, rule: Rule, count: u64) -> (CountKey, u64) {
    let key = CountKey {
        netns,
        rule: rule as u32,
        ..bytemuck::Zeroable::zeroed()
    };
    (key, count)
}

#[test]
fn what_the_sidecar_did_not_accept_is_not_counted_as_redirected() {
    let mut tally = Tally::default();
    for (rule, count) in [
        (Rule::AllOutbound, 10),
        (Rule::SidecarRefused, 3),
        (Rule::SidecarSilent, 2),
        (Rule::GivenUp, 1),
        (Rule::NoRoute, 7),
        (Rule::AllInbound, 9),
        (Rule::NoListener, 5),
    ] {
        let (mut key, _) = counter(1, 0);
        key.rule = rule as u32;
        tally.add(&key, count);
    }
    let connections = tally.connections();
    assert_eq!(connections.outbound_redirected, 4);
    assert_eq!(connections.inbound_redirected, 4);
    assert_eq!(connections.refused, 17);
    assert_eq!(connections.given_up, 1);
}

#[test]
fn refusals_are_there_before_the_first() {
    let mut totals = Totals::default();
    let none = totals.refusals();
    for rule in [Rule::NoListener, Rule::SidecarRefused] {
        assert!(none.contains(&(rule.name(), 0)), "{none:?}");
    }
    totals.add(vec![counter(1, 5), counted(1, Rule::NoListener, 2)], &[]);
    let some = totals.refusals();
    assert_eq!(some.len(), none.len());
    let counted: Vec<_> = some.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(Rule::NoListener.name(), 2)]);
}

#[test]
fn results_of_a_pod_never_decrease() {
    let mut totals = Totals::default();
    let counters = vec![
        counter(1, 5),
        counted(1, Rule::SidecarRefused, 2),
        counted(1, Rule::NoRoute, 1),
        counted(2, Rule::AllInbound, 4),
    ];
    totals.add(counters, &[]);
    let pods = totals.by_pod();
    let some = |cookie| -> Vec<_> { pods[&cookie].iter().filter(|(_, n)| *n > 0).collect() };
    // The two that failed stay counted as redirected.
    assert_eq!(some(1), [("outbound-redirected", 5), ("refused", 3)]);
    assert_eq!(some(2), [("inbound-redirected", 4)]);
}

#[test]
fn a_pod_that_comes_back_begins_with_nothing() {
    let mut totals = Totals::default();
    totals.add(vec![counter(1, 5), counter(2, 7)], &[]);
    let removed = RemovedCounts::default();
    removed.add([counter(1, 6)]);
    totals.leave_out_removed(&removed);
    let by_pod = totals.by_pod();
    assert!(!by_pod.contains_key(&1) && by_pod.contains_key(&2));
    assert_eq!(totals.by_rule()[Rule::AllOutbound.name()], 13);
    totals.add(vec![counter(1, 2), counter(2, 7)], &removed.take());
    assert_eq!(totals.by_rule()[Rule::AllOutbound.name()], 15);
}

#[test]
fn totals_count_every_connection_once() {
    let mut totals = Totals::default();
    let mut total = |read: &[(u64, u64)], removed: &[(u64, u64)]| {
        let counters = |all: &[(u64, u64)]| -> Vec<_> {
            all.iter()
                .map(|(pod, count)| counter(*pod, *count))
                .collect()
        };
        totals.add(counters(read), &counters(removed));
        totals.by_rule()[Rule::AllOutbound.name()]
    };
    assert_eq!(total(&[(1, 5), (2, 7)], &[]), 12);
    assert_eq!(
        total(&[(1, 5), (2, 7)], &[]),
        12,
        "a second look adds nothing"
    );
    assert_eq!(
        total(&[(1, 6)], &[(2, 9)]),
        15,
        "a pod has departed before the look"
    );
    assert_eq!(total(&[(1, 8)], &[(1, 8)]), 17, "after the look");
    assert_eq!(total(&[(2, 1)], &[]), 18, "back");
    assert_eq!(
        total(&[(2, 3)], &[(2, 2)]),
        19,
        "gone and back before the look"
    );
    assert_eq!(total(&[(2, 3)], &[]), 22);
    assert_eq!(total(&[], &[(3, 4)]), 26, "it came and went");
}
