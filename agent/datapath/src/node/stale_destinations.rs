//! Rows of destinations that go while their pod stays.
//!
//! Those of a pod that has lost an address say that the application's end has it. New connections would try them in vain,
//! and each destination has [`DEDICATED_ATTEMPTS`](sidetrack_common::target::DEDICATED_ATTEMPTS) targets only. And those
//! that a pod has from the pool beyond its fair share, if most of the pool is in use: a pod that connects to ever more
//! destinations would keep it from the others as long as it lives.
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
    dns::DNS_PORT,
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
/// From so many rows in use on the pool is short. The pods that have rows of it share these.
const POOL_SHORT: u64 = DESTINATION_POOL / 4 * 3;
/// Rows of a pod that are retired or removed at a time: each is a system call.
const MAX_WRITES: usize = 65_536;
/// DNS servers of a pod whose rows stay: sockets that ask several servers have no peer.
const MAX_SERVERS: usize = 64;
/// How long it may take to list the sockets of all pods, once the map is read.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

/// The addresses of enrolled pods, and which pods may have rows with others, by cookie.
#[derive(Debug, Default)]
pub struct StaleDestinations {
    pods: BTreeMap<u64, Pod>,
    /// The pod that has given back rows of the pool last.
    last: u64,
}

#[derive(Debug)]
struct Pod {
    netns: Arc<Netns>,
    own: HashSet<Addr>,
    /// When its rows are looked at, if they have to be, and how long after that again.
    due: Option<(Instant, Duration)>,
    /// When it was asked last for rows of the pool.
    asked: Option<Instant>,
    /// When one of its rows was retired last.
    retired: Option<Instant>,
}

impl StaleDestinations {
    /// A pod has these addresses now.
    pub(super) fn follow(&mut self, netns: Arc<Netns>, own: HashSet<Addr>) {
        let cookie = netns.cookie();
        let due = Some((Instant::now() + SETTLED, GRACE));
        match self.pods.get_mut(&cookie) {
            Some(pod) if pod.own == own => {}
            Some(pod) => {
                pod.netns = netns;
                pod.own = own;
                pod.due = due;
            }
            None => {
                let pod = Pod {
                    netns,
                    own,
                    due,
                    asked: None,
                    retired: None,
                };
                self.pods.insert(cookie, pod);
            }
        }
    }

    /// A pod leaves: all its rows are removed.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.pods.remove(&cookie);
    }

    /// How many rows pods have beyond their share of the pool, by cookie; none unless it is short.
    fn excess(&self, maps: &Maps) -> Result<BTreeMap<u64, usize>> {
        let counts = &maps.destinations_by_pod;
        let pool = counts.get(&POOL_IN_USE)?.unwrap_or_default();
        if pool < POOL_SHORT {
            return Ok(BTreeMap::new());
        }
        let rows = counts.rows()?.into_iter();
        let of_pods = rows.filter(|(cookie, _)| self.pods.contains_key(cookie));
        let from_pool =
            of_pods.map(|(cookie, rows)| (cookie, rows.saturating_sub(DESTINATION_QUOTA)));
        Ok(beyond_share(pool, from_pool.collect()))
    }

    /// The rows of one pod with an excess are due, each in turn.
    fn ask_next(&mut self, excess: &BTreeMap<u64, usize>, now: Instant) {
        let later = excess.range(self.last + 1..);
        for (cookie, _) in later.chain(excess.range(..=self.last)) {
            let Some(pod) = self.pods.get_mut(cookie) else {
                continue;
            };
            // What it has retired is looked at when it is due, not before.
            let is_due_soon = pod.due.is_some_and(|(at, _)| at <= now + GRACE);
            if !is_due_soon && pod.asked.is_none_or(|asked| asked + GRACE <= now) {
                pod.asked = Some(now);
                pod.due = Some((now, GRACE));
                self.last = *cookie;
                break;
            }
        }
    }

    /// Retires and removes rows of pods that are due.
    ///
    /// # Errors
    /// If a map cannot be read or written, or a pod's sockets cannot be listed.
    pub fn sweep(&mut self, maps: &Maps) -> Result<()> {
        let now = Instant::now();
        let mut rows: BTreeMap<u64, Vec<DestinationRow>> = BTreeMap::new();
        let excess = self.excess(maps)?;
        self.ask_next(&excess, now);
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
            if Instant::now() + WAIT_TIMEOUT / 2 >= until {
                // Too little is left for its sockets: it remains due.
                break;
            }
            let pause = pod.due.map_or(GRACE, |(_, pause)| pause);
            let excess = excess.get(&cookie).copied().unwrap_or_default();
            pod.due = match pod.sweep(cookie, &rows, excess, (maps, now, until)) {
                Ok(Swept { left: 0, .. }) => None,
                Ok(Swept { for_pool: 1.., .. }) => Some((now + GRACE, GRACE)),
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

/// What a sweep has left of a pod's rows.
struct Swept {
    /// Rows that are to go and are still there.
    left: usize,
    /// Of these, the ones that the pod has beyond its share of the pool.
    for_pool: usize,
}

impl Pod {
    /// The pod has `excess` rows beyond its share of the pool.
    fn sweep(
        &mut self,
        cookie: u64,
        rows: &[DestinationRow],
        excess: usize,
        (maps, now, until): (&Maps, Instant, Instant),
    ) -> Result<Swept> {
        let is_stale = |row: &&DestinationRow| {
            let source = row.destination.source;
            !source.is_unspecified() && !self.own.contains(&source)
        };
        let is_retired = |row: &&DestinationRow| row.destination.retired != 0;
        let (mut stale, current): (Vec<&DestinationRow>, Vec<_>) = rows.iter().partition(is_stale);
        let of_address = stale.len();
        let in_use = if excess > 0 || stale.iter().any(is_retired) {
            Some(targets_in_use(&self.netns, until)?)
        } else {
            None
        };
        let is_idle = |row: &DestinationRow| {
            in_use.as_ref().is_none_or(|in_use| {
                // Of UDP sockets only those of DNS capture have rows.
                let may_be_udp = in_use.without_udp && row.destination.dialed_port == DNS_PORT;
                !in_use.targets.contains(&row.key.target_be) && !may_be_udp
            })
        };
        // Those with a lost address go anyway.
        let excess = excess.saturating_sub(stale.iter().filter(|row| is_idle(row)).count());
        let (idle, stay) = choose_idle(current, excess, is_idle);
        stale.extend(idle);
        for row in stay.into_iter().filter(is_retired) {
            // The pod has the address again, or the row is needed.
            set_retired(row, 0, maps)?;
        }
        // An earlier agent may have retired rows a moment ago. None is retired before those can be removed.
        let is_ripe = *self.retired.get_or_insert(now) + GRACE <= now;
        let may_retire = is_ripe || !rows.iter().any(|row| is_retired(&row));
        let (mut removed, mut removed_for_pool) = (0_u64, 0);
        let mut writes = 0..MAX_WRITES;
        let result = stale.iter().enumerate().try_for_each(|(at, row)| {
            if row.destination.retired == 0 {
                if may_retire && writes.next().is_some() {
                    self.retired = Some(now);
                    set_retired(row, 1, maps)?;
                }
            } else if is_ripe && is_idle(row) && writes.next().is_some() {
                maps.destinations.remove(&row.key)?;
                removed += 1;
                removed_for_pool += usize::from(at >= of_address);
            }
            anyhow::Ok(())
        });
        // What connect adds meanwhile may be missing in the count: there are at least those that were found.
        let counts = &maps.destinations_by_pod;
        if removed > 0
            && let Some(count) = counts.get(&cookie)?
        {
            let count = count.max(rows.len() as u64);
            counts.insert(&cookie, &count.saturating_sub(removed))?;
        }
        result?;
        Ok(Swept {
            left: stale.len() - removed as usize,
            for_pool: stale.len() - of_address - removed_for_pool,
        })
    }
}

/// How many rows each of these pods has beyond its share of the pool, of which so many are in use. What departed pods have is
/// in use, too, until their sockets are closed.
fn beyond_share(pool: u64, mut from_pool: Vec<(u64, u64)>) -> BTreeMap<u64, usize> {
    from_pool.retain(|(_, rows)| *rows > 0);
    let all: u64 = from_pool.iter().map(|(_, rows)| rows).sum();
    let remaining = POOL_SHORT.saturating_sub(pool.saturating_sub(all));
    let share = remaining / from_pool.len().max(1) as u64;
    let excess = |(cookie, rows): (u64, u64)| (cookie, rows.saturating_sub(share) as usize);
    let pods = from_pool.into_iter().map(excess);
    pods.filter(|(_, excess)| *excess > 0).collect()
}

/// Of rows with addresses that the pod has, at most `excess` are to go: those that were retired the last time first.
/// Answers these, and the ones that stay.
fn choose_idle(
    rows: Vec<&DestinationRow>,
    excess: usize,
    is_idle: impl Fn(&DestinationRow) -> bool,
) -> (Vec<&DestinationRow>, Vec<&DestinationRow>) {
    let is_server = |row: &&DestinationRow| row.destination.dialed_port == DNS_PORT;
    let (mut stay, mut rows): (Vec<&DestinationRow>, Vec<_>) =
        rows.into_iter().partition(is_server);
    // Servers that are not retired are the ones that stay.
    stay.sort_by_key(|row| row.destination.retired);
    rows.extend(stay.drain(MAX_SERVERS.min(stay.len())..));
    rows.sort_by_key(|row| row.destination.retired == 0);
    let mut go = Vec::new();
    for row in rows {
        let goes = go.len() < excess && is_idle(row);
        if goes { &mut go } else { &mut stay }.push(row);
    }
    (go, stay)
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

#[cfg(test)]
mod tests;
