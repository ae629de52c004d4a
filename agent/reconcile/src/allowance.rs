//! How often something may be done: so many times at once, then once in a while.

use std::time::{Duration, Instant};

/// What a pod may still do at a time: a token bucket.
#[derive(Clone, Debug)]
pub struct Allowance {
    burst: u32,
    interval: Duration,
    /// When all of it is there again; `None` if none was ever used.
    full_at: Option<Instant>,
}

impl Allowance {
    /// So many at once, then one in each interval.
    #[must_use]
    pub const fn new(burst: u32, interval: Duration) -> Self {
        Self {
            burst,
            interval,
            full_at: None,
        }
    }

    /// Takes one.
    ///
    /// # Errors
    /// If there is none: when there is one again.
    pub fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.interval;
        let wait = (full_at - now).saturating_sub(self.interval * self.burst);
        if wait > Duration::ZERO {
            return Err(now + wait);
        }
        self.full_at = Some(full_at);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
