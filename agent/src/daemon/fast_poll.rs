//! When to look for the first process of pods whose cgroups have just been made.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// Between the first two looks. Each pause is half as long again as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// After longer pauses the usual retries look often enough.
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// Pods that are looked for. More are found by the usual retries.
const MAX_PODS: usize = 1024;
/// Pods that are looked for in one turn.
const MAX_AT_ONCE: usize = 64;

/// The pods that are about to start, by UID.
#[derive(Debug, Default)]
pub(super) struct FastPoll {
    pods: HashMap<String, Look>,
}

/// A pod's next look.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    pause: Duration,
}

impl FastPoll {
    /// A cgroup of the pod was made.
    pub(super) fn start(&mut self, uid: String, now: Instant) {
        if self.pods.len() < MAX_PODS || self.pods.contains_key(&uid) {
            let look = Look {
                at: now,
                pause: FIRST_PAUSE,
            };
            self.pods.insert(uid, look);
        }
    }

    /// When to look next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pods.values().map(|look| look.at).min()
    }

    /// The pods to look for now, as far as they are awaited.
    pub(super) fn due(&mut self, now: Instant, is_awaited: impl Fn(&str) -> bool) -> Vec<String> {
        let mut due = Vec::new();
        self.pods.retain(|uid, look| {
            if look.at > now || due.len() == MAX_AT_ONCE {
                return true;
            }
            // The API server may report the pod after its cgroup was made.
            if is_awaited(uid) {
                due.push(uid.clone());
            }
            look.at = now + look.pause;
            look.pause += look.pause / 2;
            look.pause < LAST_PAUSE
        });
        due
    }
}

#[cfg(test)]
mod tests {
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
}
