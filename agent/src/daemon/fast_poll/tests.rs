use super::*;

/// Looks until there is nothing to look for; answers when each was, after the first.
fn looks(poll: &mut FastPoll, start: Instant) -> Vec<Duration> {
    let mut at = Vec::new();
    while let Some(now) = poll.next() {
        let due = poll.due(now, |_| true);
        at.extend(due.iter().map(|_| now - start));
    }
    at
}

#[test]
fn a_pod_is_looked_for_a_few_times_soon_after_its_cgroup_was_made() {
    let (mut poll, start) = (FastPoll::default(), Instant::now());
    poll.start("a".to_owned(), start);
    let at = looks(&mut poll, start);
    assert_eq!(at[..2], [Duration::ZERO, FIRST_PAUSE]);
    assert!(at.len() <= 13, "{at:?}");
    assert!(at.last() >= Some(&LAST_PAUSE), "{at:?}");
    // No pod waits half as long again as it has waited already, but for the first pause.
    for pair in at[1..].windows(2) {
        assert!(pair[1] - pair[0] <= pair[0] * 3 / 2, "{at:?}");
    }
}

#[test]
fn a_cgroup_of_one_pod_makes_no_look_for_others() {
    let (mut poll, start) = (FastPoll::default(), Instant::now());
    poll.start("waits".to_owned(), start);
    looks(&mut poll, start);
    poll.start("new".to_owned(), start);
    assert_eq!(poll.due(start, |_| true), ["new"]);
}

#[test]
fn pods_that_are_not_awaited_cost_nothing_and_pods_without_number_are_bounded() {
    let (mut poll, start) = (FastPoll::default(), Instant::now());
    for number in 0..2 * MAX_PODS {
        poll.start(number.to_string(), start);
    }
    assert_eq!(poll.pods.len(), MAX_PODS);
    assert_eq!(poll.due(start, |_| true).len(), MAX_AT_ONCE);
    // Those that are not awaited keep none waiting that is.
    let mut poll = FastPoll::default();
    for number in 0..MAX_PODS {
        poll.start(number.to_string(), start);
    }
    assert_eq!(poll.due(start, |uid| uid == "7"), ["7"]);
}
