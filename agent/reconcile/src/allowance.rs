//! How often something may be done: so many times at once, then once in a while.

use std::time::{Duration, Instant};

/// Changes of a pod's policy that are followed at once.
const MAX_BURST: u32 = 5;
/// How often they are followed after that.
const REFILL_INTERVAL: Duration = Duration::from_secs(1);

/// What a pod may still do at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowance {
    /// When all of it is there again; `None` if none was ever taken.
    full_at: Option<Instant>,
}

impl Allowance {
    /// Takes one.
    ///
    /// # Errors
    /// If there is none: when there is one again.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + REFILL_INTERVAL;
        let wait = (full_at - now).saturating_sub(REFILL_INTERVAL * MAX_BURST);
        if wait > Duration::ZERO {
            return Err(now + wait);
        }
        self.full_at = Some(full_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
