//! Pauses after failed requests to the API server.

use std::{collections::hash_map::RandomState, hash::BuildHasher as _, time::Duration};

use super::watch::Pauses;

/// Short at first, because a new pod waits; growing and random, because a thousand agents use the same server;
/// never long, because pods start again as soon as that is back.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

/// In milliseconds.
const SHORTEST: u64 = 250;
const DOUBLINGS: u32 = 2;

impl Pauses for Backoff {
    fn next(&mut self) -> Duration {
        let base = SHORTEST << self.failures.min(DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        let random = RandomState::new().hash_one(self.failures);
        Duration::from_millis(base / 2 + random % base)
    }

    fn reset(&mut self) {
        self.failures = 0;
    }
}
