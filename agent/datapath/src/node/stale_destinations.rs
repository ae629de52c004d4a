//! Destinations of a pod that has lost an address: their rows say that the application's end has it. New connections would
//! try them in vain, and each destination has [`DEDICATED_ATTEMPTS`](sidetrack_common::target::DEDICATED_ATTEMPTS)
//! targets only.
//!
//! A row is removed in two steps. It is retired first, so that no new connection takes it; after [`GRACE`] it is removed if no
//! socket has its target.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::{
    addr::Addr,
    conn::{Destination, DestinationRow},
};

use super::destinations::targets_in_use;
use crate::{kernel::maps::Maps, netns::Netns};

/// How long a row stays retired at least. A connect that had read the row before has its socket by then, and a query by a
/// socket without a peer its answer.
const GRACE: Duration = Duration::from_secs(10);
/// How long all pods together may take.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Pods that may have rows with addresses which they no longer have, by cookie.
#[derive(Debug, Default)]
pub struct StaleDestinations {
    pods: BTreeMap<u64, Pod>,
}

#[derive(Debug)]
struct Pod {
    netns: Arc<Netns>,
    /// Its addresses.
    own: HashSet<Addr>,
    /// When its rows are looked at again.
    due: Instant,
}

impl StaleDestinations {
    /// A pod has these addresses now.
    pub(super) fn follow(&mut self, netns: Arc<Netns>, own: HashSet<Addr>) {
        let known = self.pods.get(&netns.cookie());
        let due = known.map_or_else(Instant::now, |known| known.due);
        self.pods.insert(netns.cookie(), Pod { netns, own, due });
    }

    /// Retires and removes rows of pods that are due.
    ///
    /// # Errors
    /// If a map cannot be read or written, or a pod's sockets cannot be listed.
    pub fn sweep(&mut self, maps: &Maps) -> Result<()> {
        let now = Instant::now();
        if !self.pods.values().any(|pod| pod.due <= now) {
            return Ok(());
        }
        let mut rows: BTreeMap<u64, Vec<DestinationRow>> = BTreeMap::new();
        for (key, row) in maps.destinations.rows()? {
            let pod = self.pods.get(&key.netns);
            if pod.is_some_and(|pod| pod.due <= now) {
                rows.entry(key.netns).or_default().push(row);
            }
        }
        let until = now + WAIT_TIMEOUT;
        let mut result = Ok(());
        for (netns, mut pod) in std::mem::take(&mut self.pods) {
            if pod.due > now || Instant::now() >= until {
                self.pods.insert(netns, pod);
                continue;
            }
            if maps.pods.get(&netns)?.is_none() {
                // `Departed` removes all its rows.
                continue;
            }
            let rows = rows.remove(&netns).unwrap_or_default();
            match pod.sweep(netns, &rows, maps, until) {
                Ok(0) => continue,
                Ok(_) => {}
                Err(problem) => result = Err(problem),
            }
            pod.due = now + GRACE;
            self.pods.insert(netns, pod);
        }
        result.context("remove destinations with addresses that a pod no longer has")
    }
}

impl Pod {
    /// Answers how many rows remain that it has no address for.
    fn sweep(
        &self,
        netns: u64,
        rows: &[DestinationRow],
        maps: &Maps,
        until: Instant,
    ) -> Result<usize> {
        let is_stale = |row: &&DestinationRow| {
            let source = row.destination.source;
            !source.is_unspecified() && !self.own.contains(&source)
        };
        let (stale, current): (Vec<&DestinationRow>, Vec<_>) = rows.iter().partition(is_stale);
        let (retired, fresh): (Vec<&DestinationRow>, Vec<_>) =
            stale.iter().partition(|row| row.destination.retired != 0);
        for row in fresh {
            set_retired(row, 1, maps)?;
        }
        // The pod has the address again.
        for row in current.iter().filter(|row| row.destination.retired != 0) {
            set_retired(row, 0, maps)?;
        }
        if retired.is_empty() {
            return Ok(stale.len());
        }
        let in_use = targets_in_use(&self.netns, until)?;
        let mut removed = 0;
        for row in retired {
            if !in_use.contains(&row.key.target_be) {
                removed += usize::from(maps.destinations.remove(&row.key)?);
            }
        }
        // Rows that connect adds meanwhile are missing until the next time.
        let remaining = rows.len() - removed;
        maps.destinations_by_pod
            .insert(&netns, &(remaining as u64))?;
        Ok(stale.len() - removed)
    }
}

fn set_retired(row: &DestinationRow, retired: u32, maps: &Maps) -> Result<()> {
    let destination = Destination {
        retired,
        ..row.destination
    };
    let key = row.key;
    let row = DestinationRow { key, destination };
    Ok(maps.destinations.insert(&key, &row)?)
}
