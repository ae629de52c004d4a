//! From readings of counters to rates.
//!
//! Invariant: a rate is never negative, and never the difference of counters of two lives of a pod.

use std::{collections::HashMap, time::Duration};

use super::report::{PerSecond, Row};
use crate::Connections;

/// What is remembered of a pod.
#[derive(Clone, Copy, Debug)]
struct Last {
    cookie: u64,
    at: Duration,
    counts: Connections,
    /// The reading before, if this one has less: counters were moved from one row of the kernel's map to
    /// another while they were read, or they began anew.
    higher: Option<(Duration, Connections)>,
}

/// Readings of one node, one after the other.
#[derive(Debug, Default)]
pub struct Meter {
    last: HashMap<(String, String), Last>,
    at: Option<Duration>,
}

impl Meter {
    /// Takes a reading of pods, each with the cookie of its network namespace when enrolled: counters belong to it. `at` is
    /// when they were read, on any clock that never goes back. Pods of the first reading have no rates.
    pub fn read(
        &mut self,
        at: Duration,
        pods: Vec<(Option<u64>, Row)>,
    ) -> (Option<Duration>, Vec<Row>) {
        let since = self.at.replace(at).and_then(|last| at.checked_sub(last));
        let mut last = HashMap::new();
        let rows = pods.into_iter().map(|(cookie, mut row)| {
            if let (Some(cookie), Some(counts)) = (cookie, row.connections) {
                let key = (row.namespace.clone(), row.name.clone());
                let before = self.last.get(&key).filter(|last| last.cookie == cookie);
                let now = next(before, cookie, at, counts);
                row.per_second = before.and_then(|before| rates_since(before, &now));
                last.insert(key, now);
            }
            row
        });
        let rows = rows.collect();
        self.last = last;
        (since, rows)
    }
}

fn next(before: Option<&Last>, cookie: u64, at: Duration, counts: Connections) -> Last {
    let higher = before.filter(|before| !is_after(&counts, &before.counts));
    Last {
        cookie,
        at,
        counts,
        higher: higher.map(|before| (before.at, before.counts)),
    }
}

/// The rates from the last reading to this one.
fn rates_since(before: &Last, now: &Last) -> Option<PerSecond> {
    if now.higher.is_some() {
        return None;
    }
    // After a reading that had less, the one before it counts if nothing has begun anew.
    let (at, counts) = match before.higher {
        Some((at, counts)) if is_after(&now.counts, &counts) => (at, counts),
        _ => (before.at, before.counts),
    };
    let seconds = now.at.checked_sub(at)?.as_secs_f64();
    (seconds > 0.0).then(|| PerSecond::between(&counts, &now.counts, seconds))
}

/// Whether counters can have become these. A connection counts as redirected until it fails, so that this count
/// alone may become less.
fn is_after(now: &Connections, before: &Connections) -> bool {
    let sums = |of: &Connections| {
        [
            of.outbound_redirected + of.refused + of.given_up,
            of.inbound_redirected,
            of.untouched,
            of.before_sidecar,
            of.refused,
            of.given_up,
            of.udp,
        ]
    };
    sums(now)
        .iter()
        .zip(sums(before))
        .all(|(now, before)| *now >= before)
}

#[cfg(test)]
mod tests;
