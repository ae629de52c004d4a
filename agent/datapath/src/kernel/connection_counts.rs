//! The kernel programs' counts of connections.

use std::io;

use parking_lot::Mutex;
use sidetrack_common::{
    addr::Family,
    conn::HandshakeReason,
    count::{ANY_POLICY, CountKey, RuleCounts},
    rule::Rule,
};

use super::maps::Maps;

/// Counters that were removed from the kernel with their pods, and that the totals do not contain yet.
#[derive(Debug, Default)]
pub struct RemovedCounts(Mutex<Vec<(CountKey, u64)>>);

impl RemovedCounts {
    /// Adds some.
    pub fn add(&self, counted: impl IntoIterator<Item = (CountKey, u64)>) {
        self.0.lock().extend(counted);
    }

    /// Takes all.
    #[must_use]
    pub fn take(&self) -> Vec<(CountKey, u64)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Maps {
    /// Connections that needed a handshake row, by the reason.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn handshakes_by_reason(&self) -> io::Result<Vec<(&'static str, u64)>> {
        let count = |(reason, name): (HandshakeReason, &'static str)| {
            let count = self.handshakes_by_reason.get(&(reason as u32))?;
            Ok((name, count.unwrap_or_default()))
        };
        HandshakeReason::ALL.into_iter().map(count).collect()
    }

    /// Removes a pod's counters from the kernel, for [`RemovedCounts`].
    ///
    /// # Errors
    /// If a map cannot be read or written.
    pub fn remove_counts(&self, netns: u64, removed: &RemovedCounts) -> io::Result<()> {
        for key in self.counts.keys()?.iter().filter(|key| key.netns == netns) {
            if let Some(count) = self.counts.take(key)? {
                removed.add([(*key, count)]);
            }
        }
        if let Some(counts) = self.overflow.take(&netns)? {
            removed.add(by_rule(netns, &counts));
        }
        self.counters_by_pod.remove(&netns)?;
        Ok(())
    }

    /// All counters. Those of connections that found no room for one of their own have [`ANY_POLICY`].
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn connection_counts(&self) -> io::Result<Vec<(CountKey, u64)>> {
        let mut all = self.counts.rows()?;
        for (netns, counts) in self.overflow.rows()? {
            all.extend(by_rule(netns, &counts));
        }
        Ok(all)
    }

    /// Corrects how many counters a pod has, after some were removed.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn recount_counters<'a>(
        &self,
        netns: u64,
        known: impl Iterator<Item = &'a CountKey>,
    ) -> io::Result<()> {
        let own = known.filter(|key| key.netns == netns && key.policy != ANY_POLICY);
        self.counters_by_pod.insert(&netns, &(own.count() as u64))
    }
}

/// What a pod's row has counted.
fn by_rule(netns: u64, counts: &RuleCounts) -> Vec<(CountKey, u64)> {
    let mut found = Vec::new();
    for family in [Family::V4, Family::V6] {
        for rule in Rule::ALL {
            let key = CountKey {
                netns,
                policy: ANY_POLICY,
                family: family as u32,
                rule: *rule as u32,
                index: 0,
            };
            let count = counts.counts[RuleCounts::index(family, *rule)];
            found.extend((count > 0).then_some((key, count)));
        }
    }
    found
}

#[cfg(test)]
mod tests;
