//! Repairs that have failed, and when they are tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use sidetrack_common::ids::NetnsCookie;

use super::{LinkId, Part};

/// The first pause after a failure: the next look.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest one. Each failure doubles the pause before.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What could not be repaired.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: BTreeMap<Part, Failure>,
}

/// A repair that has failed.
#[derive(Debug)]
struct Failure {
    since: Instant,
    pause: Duration,
    next_try: Instant,
    problem: String,
}

impl Backoff {
    /// Whether nothing has failed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// Forgets what is whole, or is to be repaired no more. Only a look at everything says that of a part, but for what
    /// was `not_asked`.
    pub fn retain(&mut self, damaged: &BTreeSet<Part>, not_asked: &BTreeSet<NetnsCookie>) {
        let is_unknown = |part: &Part| match part {
            Part::Rows(cookie) | Part::Link(LinkId::Ingress(cookie, ..)) => {
                not_asked.contains(cookie)
            }
            _ => false,
        };
        self.failures
            .retain(|part, _| damaged.contains(part) || is_unknown(part));
    }

    /// Whether a repair may be tried.
    #[must_use]
    pub fn is_due(&self, part: Part, now: Instant) -> bool {
        let failure = self.failures.get(&part);
        failure.is_none_or(|failure| failure.next_try <= now)
    }

    /// A repair has failed. Answers whether that is new.
    pub fn failed(&mut self, part: Part, problem: String, now: Instant) -> bool {
        let earlier = self.failures.get(&part);
        let is_new = earlier.is_none_or(|earlier| earlier.problem != problem);
        let pause = earlier.map_or(FIRST_PAUSE, |it| (it.pause * 2).min(LONGEST_PAUSE));
        let failure = Failure {
            since: earlier.map_or(now, |it| it.since),
            pause,
            next_try: now + pause,
            problem,
        };
        self.failures.insert(part, failure);
        is_new
    }

    /// A repair was done.
    pub fn succeeded(&mut self, part: Part) {
        self.failures.remove(&part);
    }

    /// What could not be repaired, why, and for how long.
    pub fn problems(&self, now: Instant) -> impl Iterator<Item = (Part, &str, Duration)> {
        self.failures.iter().map(move |(part, failure)| {
            let since = now.saturating_duration_since(failure.since);
            (*part, &*failure.problem, since)
        })
    }
}
