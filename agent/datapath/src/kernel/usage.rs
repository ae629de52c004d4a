//! How full the maps are, and what it means when one is.

use std::io;

use sidetrack_common::{ids::NetnsCookie, names::HANDSHAKE_QUOTA};

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
    /// Rows it can have.
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
