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

/// After a change of addresses: a connect that had read the pod's routes before has added its row by then.
const SETTLED: Duration = Duration::from_secs(1);
/// How long a row stays retired at least. A connect that had read the row before has its socket by then, and a query by a
/// socket without a peer its answer.
const GRACE: Duration = Duration::from_secs(10);
/// The longest pause. Rows that a socket needs stay as long as it is open, and an application may add others by sockets that
/// it binds to foreign addresses.
const MAX_PAUSE: Duration = Duration::from_secs(320);
/// How long all pods together may take, once the map is read.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

/// The addresses of enrolled pods, and which pods may have rows with others, by cookie.
#[derive(Debug, Default)]
pub struct StaleDestinations {
    pods: BTreeMap<u64, Pod>,
}

#[derive(Debug)]
struct Pod {
    netns: Arc<Netns>,
    own: HashSet<Addr>,
    /// When its rows are looked at, if they have to be, and how long after that again.
    due: Option<(Instant, Duration)>,
}

impl StaleDestinations {
    /// A pod has these addresses now.
    pub(super) fn follow(&mut self, netns: Arc<Netns>, own: HashSet<Addr>) {
        let cookie = netns.cookie();
        if self.pods.get(&cookie).is_some_and(|known| known.own == own) {
            return;
        }
        let due = Some((Instant::now() + SETTLED, GRACE));
        self.pods.insert(cookie, Pod { netns, own, due });
    }

    /// A pod leaves: all its rows are removed.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.pods.remove(&cookie);
    }

    /// Retires and removes rows of pods that are due.
    ///
    /// # Errors
    /// If a map cannot be read or written, or a pod's sockets cannot be listed.
    pub fn sweep(&mut self, maps: &Maps) -> Result<()> {
        let now = Instant::now();
        let mut rows: BTreeMap<u64, Vec<DestinationRow>> = BTreeMap::new();
        for (cookie, pod) in &mut self.pods {
            if pod.due.is_some_and(|(at, _)| at <= now) {
                match maps.destinations_by_pod.get(cookie)? {
                    Some(_) => drop(rows.insert(*cookie, Vec::new())),
                    None => pod.due = None,
                }
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        maps.destinations.visit_rows(|key, row| {
            if let Some(of_pod) = rows.get_mut(&key.netns) {
                of_pod.push(row);
            }
        })?;
        let now = Instant::now();
        let until = now + WAIT_TIMEOUT;
        let mut result = Ok(());
        for (cookie, rows) in rows {
            let Some(pod) = self.pods.get_mut(&cookie) else {
                continue;
            };
            if Instant::now() >= until {
                // It remains due.
                break;
            }
            let pause = pod.due.map_or(GRACE, |(_, pause)| pause);
            pod.due = match pod.sweep(cookie, &rows, maps, until) {
                Ok(0) => None,
                Ok(_) => Some((now + pause, (2 * pause).min(MAX_PAUSE))),
                Err(problem) => {
                    result = Err(problem);
                    Some((now + GRACE, pause))
                }
            };
        }
        result.context("remove destinations with addresses that a pod no longer has")
    }
}

impl Pod {
    /// Answers how many rows remain that it has no address for.
    fn sweep(
        &self,
        cookie: u64,
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
        // What connect adds between the two is not counted.
        let counts = &maps.destinations_by_pod;
        if let Some(count) = counts.get(&cookie)? {
            counts.insert(&cookie, &count.saturating_sub(removed as u64))?;
        }
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
