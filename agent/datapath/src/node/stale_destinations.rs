//! Rows of destinations that go while their pod stays.
//!
//! Those of a pod that has lost an address say that the application's end has it. New connections would try them in vain,
//! and each destination has [`DEDICATED_ATTEMPTS`](sidetrack_common::target::DEDICATED_ATTEMPTS) targets only. And those
//! that a pod has from the pool, if most of the pool is in use: a pod that connects to ever more destinations would keep
//! it from the others as long as it lives.
//!
//! A row is removed in two steps. It is retired first, so that no new connection takes it; after [`GRACE`] it is removed if no
//! socket has its target.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::{
    addr::Addr,
    conn::{Destination, DestinationRow},
    names::{DESTINATION_POOL, DESTINATION_QUOTA, POOL_IN_USE},
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
/// From so many rows of the pool on those are removed that no socket needs.
const POOL_SHORT: u64 = DESTINATION_POOL / 4 * 3;
/// Rows of one pod that are retired at a time: each is a system call.
const MAX_RETIRED: usize = 32_768;
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
    /// When one of its rows was retired last.
    retired: Option<Instant>,
}

impl StaleDestinations {
    /// A pod has these addresses now.
    pub(super) fn follow(&mut self, netns: Arc<Netns>, own: HashSet<Addr>) {
        let cookie = netns.cookie();
        let known = self.pods.get(&cookie);
        if known.is_some_and(|known| known.own == own) {
            return;
        }
        let pod = Pod {
            retired: known.and_then(|known| known.retired),
            due: Some((Instant::now() + SETTLED, GRACE)),
            netns,
            own,
        };
        self.pods.insert(cookie, pod);
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
        let in_use = maps.destinations_by_pod.get(&POOL_IN_USE)?;
        let is_short = in_use.is_some_and(|rows| rows >= POOL_SHORT);
        for (cookie, pod) in &mut self.pods {
            if is_short && pod.due.is_none() && from_pool(*cookie, maps)? > 0 {
                pod.due = Some((now, GRACE));
            }
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
            let from_pool = if is_short {
                from_pool(cookie, maps)?
            } else {
                0
            };
            pod.due = match pod.sweep(cookie, &rows, from_pool, (maps, now, until)) {
                Ok(Swept { left: 0, .. }) if from_pool == 0 => None,
                Ok(Swept { removed: 1.., .. }) => Some((now + GRACE, GRACE)),
                Ok(_) => Some((now + pause, (2 * pause).min(MAX_PAUSE))),
                Err(problem) => {
                    result = Err(problem);
                    Some((now + GRACE, pause))
                }
            };
        }
        result.context("remove destinations that a pod no longer needs")
    }
}

/// What a sweep did with a pod's rows.
struct Swept {
    /// Rows that are to go and are still there.
    left: usize,
    removed: usize,
}

impl Pod {
    /// So many rows go of those that the pod has from the pool.
    fn sweep(
        &mut self,
        cookie: u64,
        rows: &[DestinationRow],
        from_pool: usize,
        (maps, now, until): (&Maps, Instant, Instant),
    ) -> Result<Swept> {
        let is_stale = |row: &&DestinationRow| {
            let source = row.destination.source;
            !source.is_unspecified() && !self.own.contains(&source)
        };
        let is_retired = |row: &&DestinationRow| row.destination.retired != 0;
        let (mut stale, current): (Vec<&DestinationRow>, Vec<_>) = rows.iter().partition(is_stale);
        let in_use = if from_pool > 0 || stale.iter().any(is_retired) {
            targets_in_use(&self.netns, until)?
        } else {
            BTreeSet::new()
        };
        // Those that were retired the last time first.
        let (retired, fresh): (Vec<&DestinationRow>, Vec<_>) =
            current.into_iter().partition(is_retired);
        let is_idle = |row: &DestinationRow| !in_use.contains(&row.key.target_be);
        let mut idle = from_pool.min(MAX_RETIRED);
        for row in retired.into_iter().chain(fresh) {
            if idle > 0 && is_idle(row) {
                idle -= 1;
                stale.push(row);
            } else if row.destination.retired != 0 {
                // The pod has the address again, or needs the row.
                set_retired(row, 0, maps)?;
            }
        }
        // An earlier agent may have retired it a moment ago.
        let retired = *self.retired.get_or_insert(now);
        let mut removed = 0;
        for row in &stale {
            if row.destination.retired == 0 {
                set_retired(row, 1, maps)?;
                self.retired = Some(now);
            } else if is_idle(row) && retired + GRACE <= now {
                removed += usize::from(maps.destinations.remove(&row.key)?);
            }
        }
        // What connect adds between the two is not counted.
        let counts = &maps.destinations_by_pod;
        if removed > 0
            && let Some(count) = counts.get(&cookie)?
        {
            counts.insert(&cookie, &count.saturating_sub(removed as u64))?;
        }
        let left = stale.len() - removed;
        Ok(Swept { left, removed })
    }
}

/// How many rows of the pool a pod has.
fn from_pool(cookie: u64, maps: &Maps) -> Result<usize> {
    let rows = maps.destinations_by_pod.get(&cookie)?.unwrap_or_default();
    Ok(rows.saturating_sub(DESTINATION_QUOTA) as usize)
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
