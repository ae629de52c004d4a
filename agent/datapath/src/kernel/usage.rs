//! How full the maps are, and what it means when one is.

use std::io;

use sidetrack_common::{
    ids::NetnsCookie,
    names::{
        HANDSHAKE_POOL, HANDSHAKE_QUOTA, HANDSHAKE_RESERVE, HANDSHAKE_TRANSLATED, HANDSHAKES,
        POOL_IN_USE, RECORD_BY_SOCK, RECORD_POOL,
    },
};

use super::maps::Maps;

/// A map with at least this part of its rows in use is a problem.
const NEARLY: (u64, u64) = (9, 10);

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The map's name.
    pub map: &'static str,
    /// What happens to what does not fit.
    pub then: &'static str,
    /// What helps.
    pub cure: &'static str,
    /// Rows it has.
    pub rows: u64,
    /// Rows it can have before something is refused.
    pub capacity: u64,
}

impl Usage {
    /// What people should know, if it is nearly full.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (part, whole) = NEARLY;
        if self.rows * whole < self.capacity * part {
            return None;
        }
        Some(format!(
            "map {} has {} of {} rows; when it is full, {}: {}",
            self.map, self.rows, self.capacity, self.then, self.cure
        ))
    }
}

impl Maps {
    /// Sets the use of what the kernel programs count, and how much of it pods have together: further connections of
    /// pods that have more than their guarantee are refused then, although the map has room.
    pub(super) fn count_pools(&self, all: &mut Vec<Usage>) -> io::Result<()> {
        let counted = |count: Option<u64>| count.map_or(0, |count| (count as i64).max(0) as u64);
        for usage in all.iter_mut().filter(|it| it.map == HANDSHAKES) {
            usage.rows = counted(self.handshake_count.get(&0)?);
            let kept = HANDSHAKE_TRANSLATED + HANDSHAKE_RESERVE;
            usage.capacity = u64::from(HANDSHAKE_POOL - kept);
        }
        all.push(Usage {
            map: RECORD_BY_SOCK,
            then: "connections of pods that need a further record are refused",
            cure: "find the pods that hold many sockets open",
            rows: counted(self.records_by_pod.get(&POOL_IN_USE)?),
            capacity: RECORD_POOL as u64,
        });
        Ok(())
    }

    /// Pods that have nearly all the handshakes a pod may have, and how many they have.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn crowded(&self) -> io::Result<Vec<(NetnsCookie, u64)>> {
        let (part, whole) = NEARLY;
        let enough = u64::from(HANDSHAKE_QUOTA) * part / whole;
        let rows = self.handshakes_by_pod.rows()?.into_iter();
        let crowded = rows.filter(|(_, count)| *count as i64 >= enough as i64);
        Ok(crowded
            .map(|(cookie, count)| (NetnsCookie::new(cookie), count))
            .collect())
    }
}

#[cfg(test)]
mod tests;
