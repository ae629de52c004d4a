//! How full the maps are, and what it means when one is.

use std::io;

use sidetrack_common::{ids::NetnsCookie, names::HANDSHAKE_QUOTA};

use super::maps::Maps;

/// From this share of its rows on a map is a problem.
const NEARLY: (u64, u64) = (9, 10);

/// What happens when a map is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The map's name.
    pub map: &'static str,
    /// What happens to what does not fit.
    pub then: &'static str,
    /// What helps.
    pub cure: &'static str,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    limit: Limit,
    /// Rows it has.
    pub rows: u64,
    /// Rows it can have.
    pub capacity: u64,
}

impl Limit {
    /// A map with these rows and this capacity.
    #[must_use]
    pub fn usage(self, (rows, capacity): (u64, u64)) -> Usage {
        Usage {
            limit: self,
            rows,
            capacity,
        }
    }
}

impl Usage {
    /// The map's name.
    #[must_use]
    pub fn map(&self) -> &'static str {
        self.limit.map
    }

    /// What people should know, if it is nearly full.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (part, whole) = NEARLY;
        if self.rows * whole < self.capacity * part {
            return None;
        }
        let Limit { map, then, cure } = self.limit;
        Some(format!(
            "map {map} has {} of {} rows; when it is full, {then}: {cure}",
            self.rows, self.capacity
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
