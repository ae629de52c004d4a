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
mod tests;
