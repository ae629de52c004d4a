//! Pauses after failed requests to the API server.

use std::time::Duration;

use super::watch::Pauses;

/// Short at first, because a new pod waits; growing and random, because a thousand agents use the same server;
/// never long, because pods start again as soon as that is back.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    /// After lasting failures.
    doublings: u32,
}

/// In milliseconds.
const SHORTEST: u64 = 250;
/// A second at last.
const DOUBLINGS: u32 = 2;

impl Default for Backoff {
    fn default() -> Self {
        Self {
            failures: 0,
            doublings: DOUBLINGS,
        }
    }
}

impl Backoff {
    /// About a minute at last after lasting failures: for objects that nothing waits for, and that may be forbidden for good.
    pub(super) fn seldom() -> Self {
        Self {
            failures: 0,
            doublings: 8,
        }
    }
}

impl Pauses for Backoff {
    fn next(&mut self, is_lasting: bool) -> Duration {
        let most = if is_lasting {
            self.doublings
        } else {
            DOUBLINGS
        };
        let base = SHORTEST << self.failures.min(most);
        self.failures = self.failures.saturating_add(1);
        Duration::from_millis(base / 2 + fastrand::u64(..base))
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}
