//! Handshake rows whose connections are gone. The kernel programs remove a row when its connection
//! closes, unless they are detached just then, or a foreign program takes the callback from them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sidetrack_common::conn::HandshakeKey;
use sidetrack_reconcile::repairs::StaleHandshake;

use crate::{
    kernel::{
        maps::Maps,
        sock_diag::{self, Sockets},
    },
    netns::Netns,
};

/// How often rows are looked at. Few are older than a round trip over loopback, so that those seen twice
/// are worth asking for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a row remains of a pod that cannot be looked into: its socket may be there.
const ABANDONED_TTL: Duration = Duration::from_secs(600);

/// How long listing the sockets of all these pods may take. The next look continues with the pod after the last one.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Rows that were there at the last look.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    /// Since when, by key and the cookie of the client's socket: another one may have had the key before.
    rows: HashMap<(HandshakeKey, u64), Instant>,
    next: Option<Instant>,
    /// The pod that was looked into last.
    last: u64,
}

impl Lingering {
    /// The rows whose connections are gone, when it is time to look. `netns_of` finds the namespace of an enrolled pod.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub(super) fn stale<'a>(
        &mut self,
        maps: &Maps,
        netns_of: impl Fn(u64) -> Option<&'a Netns>,
    ) -> Result<Vec<StaleHandshake>> {
        let now = Instant::now();
        if self.next.is_some_and(|next| now < next) {
            return Ok(Vec::new());
        }
        self.next = Some(now + POLL_INTERVAL);
        let mut seen_twice = self.seen_twice(maps, now)?;
        let mut stale = Vec::new();
        let until = Instant::now() + WAIT_TIMEOUT;
        let later = seen_twice.split_off(&(self.last + 1));
        for (netns, rows) in later.into_iter().chain(seen_twice) {
            if Instant::now() >= until {
                break;
            }
            self.last = netns;
            // A pod that is just ending cannot be looked into, nor one with too many sockets.
            let clients = rows.iter().map(|((_, client), _)| *client).collect();
            let alive = netns_of(netns).and_then(|netns| alive(netns, &clients, until).ok());
            let is_gone = |client, since| match &alive {
                Some(alive) => !alive.contains(&client),
                None => now - since > ABANDONED_TTL,
            };
            let gone = rows.into_iter();
            let gone = gone.filter(|((_, client), since)| is_gone(*client, *since));
            stale.extend(gone.map(|(row, _)| row));
        }
        Ok(stale)
    }

    /// The rows of each pod that were there at the last look, and since when.
    fn seen_twice(
        &mut self,
        maps: &Maps,
        now: Instant,
    ) -> Result<BTreeMap<u64, Vec<(StaleHandshake, Instant)>>> {
        let before = std::mem::take(&mut self.rows);
        let mut seen_twice: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (key, row) in maps.handshakes.rows().context("list them")? {
            let row = (key, row.handshake.client_cookie);
            let since = before.get(&row).copied();
            self.rows.insert(row, since.unwrap_or(now));
            let of_pod = since.map(|since| (row, since));
            seen_twice.entry(key.netns).or_default().extend(of_pod);
        }
        Ok(seen_twice)
    }
}

/// Removes rows unless their sockets have finished them meanwhile; answers whether there were any.
///
/// # Errors
/// If the map cannot be read or written.
pub(super) fn remove(rows: &[StaleHandshake], maps: &Maps) -> Result<bool> {
    let mut removed = false;
    for (key, client) in rows {
        // Another socket may have its place.
        let row = maps.handshakes.get(key)?;
        if row.is_some_and(|row| row.handshake.client_cookie == *client) {
            removed |= maps.handshakes.remove(key)?;
        }
    }
    if removed {
        maps.recount_handshakes()?;
    }
    Ok(removed)
}

/// Those of a pod's sockets that have a peer, by cookie.
fn alive(netns: &Netns, wanted: &BTreeSet<u64>, until: Instant) -> Result<BTreeSet<u64>> {
    netns.run(|| {
        let mut alive = BTreeSet::new();
        sock_diag::visit(Sockets::Connected, until, |socket| {
            alive.extend(Some(sock_diag::cookie(&socket)).filter(|it| wanted.contains(it)));
            ControlFlow::Continue(())
        })?;
        Ok(alive)
    })?
}
