//! The kernel programs' counts of handshakes, corrected when they have drifted.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::maps::Maps;

impl Maps {
    /// Corrects the programs' own counts of handshakes, the node's and each pod's, if they have drifted:
    /// too high a count would refuse connections. They continue to count meanwhile, so a difference
    /// counts only if it is there twice while nothing moves: a correction made in the middle of
    /// a flood would itself be the drift.
    pub fn recount_handshakes(&self) -> Result<()> {
        let first = self.handshake_drifts()?;
        if first.is_empty() {
            return Ok(());
        }
        let again = self.handshake_drifts()?;
        for (count, drift) in first {
            if !again.contains_key(&count) {
                continue;
            }
            let believed = self.believed(count)?;
            let corrected = believed.wrapping_sub(drift as u64);
            match count {
                Count::Node => self.handshake_count.insert(&0, &corrected),
                Count::Pod(cookie) => self.handshakes_by_pod.insert(&cookie, &corrected),
            }
            .context("correct the count")?;
        }
        Ok(())
    }

    /// What the programs believe; no row means 0.
    fn believed(&self, count: Count) -> Result<u64> {
        let found = match count {
            Count::Node => self.handshake_count.get(&0),
            Count::Pod(cookie) => self.handshakes_by_pod.get(&cookie),
        };
        let found = found.context("read the count of handshakes")?;
        Ok(found.unwrap_or_default())
    }

    /// By how much counts are too high, of those that are far off and do not move.
    fn handshake_drifts(&self) -> Result<BTreeMap<Count, i64>> {
        const TOLERATED: u64 = 256;
        // Pods that are counted and have no rows are among them.
        let pods = self.handshakes_by_pod.rows().context("list counts")?;
        let mut before = BTreeMap::from([(Count::Node, self.believed(Count::Node)?)]);
        before.extend(
            pods.into_iter()
                .map(|(cookie, count)| (Count::Pod(cookie), count)),
        );
        let mut counted: BTreeMap<Count, u64> = BTreeMap::new();
        for key in self.handshakes.keys().context("list handshakes")? {
            *counted.entry(Count::Node).or_default() += 1;
            *counted.entry(Count::Pod(key.netns)).or_default() += 1;
        }
        let mut drifts = BTreeMap::new();
        for count in before.keys().chain(counted.keys()) {
            let before = before.get(count).copied().unwrap_or_default();
            let after = self.believed(*count)?;
            let moves = before.wrapping_sub(after) as i64;
            let counted = counted.get(count).copied().unwrap_or_default();
            let drift = after.wrapping_sub(counted) as i64;
            let quiet = moves.unsigned_abs() <= TOLERATED;
            if quiet && drift.unsigned_abs() > TOLERATED {
                drifts.insert(*count, drift);
            }
        }
        Ok(drifts)
    }
}

/// One of the programs' counts of handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Count {
    /// All.
    Node,
    /// Those of a network namespace.
    Pod(u64),
}
