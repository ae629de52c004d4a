//! Handshake rows whose connections are gone. The kernel programs remove a row when its connection
//! closes, unless they are detached just then, or a foreign program takes the callback from them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6};
use sidetrack_common::{conn::HandshakeKey, ids::NetnsCookie};

use sidetrack_reconcile::Enrollment;

use super::Reconciler;
use crate::{
    kernel::{
        Datapath,
        repair::{Findings, Kind},
        sock_diag::{self, Sockets},
    },
    netns::Netns,
    node::KernelNode,
};

/// How often rows are looked at. Few are older than a round trip over loopback, so that those seen twice
/// are worth asking for.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How long a row is left of a pod that cannot be looked into: its socket may be there.
const ABANDONED_TTL: Duration = Duration::from_secs(600);

/// How long listing the sockets of all these pods may take. The next look goes on with the pod after the last one.
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

impl Reconciler {
    /// Removes rows whose connections are gone.
    pub(super) fn sweep_handshakes(&mut self, findings: &mut Findings) {
        let now = Instant::now();
        if self.lingering.next.is_some_and(|next| now < next) {
            return;
        }
        self.lingering.next = Some(now + POLL_INTERVAL);
        match self.sweep(now) {
            Ok(0) => {}
            Ok(rows) => findings.repaired(
                Kind::Row,
                format!("{rows} handshakes were left by connections that are gone: removed them"),
            ),
            Err(error) => findings
                .problems
                .push(format!("look for handshakes that are left: {error:#}")),
        }
    }

    fn sweep(&mut self, now: Instant) -> Result<usize> {
        let maps = &self.core.node.datapath.maps;
        let before = std::mem::take(&mut self.lingering.rows);
        let mut seen_twice: BTreeMap<u64, Vec<(HandshakeKey, u64, Instant)>> = BTreeMap::new();
        for (key, row) in maps.handshakes.rows().context("list them")? {
            let client = row.handshake.client_cookie;
            let since = before.get(&(key, client)).copied();
            self.lingering
                .rows
                .insert((key, client), since.unwrap_or(now));
            if let Some(since) = since {
                let of_pod = seen_twice.entry(key.netns).or_default();
                of_pod.push((key, client, since));
            }
        }
        let mut removed = 0;
        let until = Instant::now() + WAIT_TIMEOUT;
        let later = seen_twice.split_off(&(self.lingering.last + 1));
        for (netns, rows) in later.into_iter().chain(seen_twice) {
            if Instant::now() >= until {
                break;
            }
            self.lingering.last = netns;
            // A pod that is just ending cannot be looked into, nor one with too many sockets.
            let clients = rows.iter().map(|(_, client, _)| *client).collect();
            let alive = self
                .enrollment_of(netns)
                .and_then(|it| alive(it, &clients, until).ok());
            for (key, client, since) in rows {
                let gone = match &alive {
                    Some(alive) => !alive.contains(&client),
                    None => now - since > ABANDONED_TTL,
                };
                // Its socket may have finished it meanwhile, and another may have its place.
                let same = || -> io::Result<bool> {
                    let row = maps.handshakes.get(&key)?;
                    Ok(row.is_some_and(|row| row.handshake.client_cookie == client))
                };
                if gone && same()? {
                    removed += usize::from(maps.handshakes.remove(&key)?);
                }
            }
        }
        if removed > 0 {
            maps.recount_handshakes()?;
        }
        self.sweep_counts()?;
        Ok(removed)
    }

    /// A program that was running when its pod was released has begun the pod's counts anew.
    fn sweep_counts(&self) -> io::Result<()> {
        let Datapath {
            maps,
            removed_counts,
            ..
        } = &self.core.node.datapath;
        let known = self.core.known_cookies();
        let unknown = |netns: &u64| !known.contains(&NetnsCookie::new(*netns));
        for netns in maps.handshakes_by_pod.keys()?.into_iter().filter(unknown) {
            maps.handshakes_by_pod.remove(&netns)?;
        }
        let counted = maps.counters_by_pod.keys()?.into_iter();
        let counted: BTreeSet<u64> = counted.chain(maps.overflow.keys()?).collect();
        for netns in counted.into_iter().filter(unknown) {
            maps.remove_counts(netns, removed_counts)?;
        }
        Ok(())
    }

    fn enrollment_of(&self, netns: u64) -> Option<&Enrollment<KernelNode>> {
        self.core
            .enrollments()
            .map(|(_, enrollment)| enrollment)
            .find(|enrollment| enrollment.cookie.get() == netns)
    }
}

/// Those of a pod's sockets that have a peer, by cookie.
fn alive(
    enrollment: &Enrollment<KernelNode>,
    wanted: &BTreeSet<u64>,
    until: Instant,
) -> Result<BTreeSet<u64>> {
    let netns = Netns::open(&enrollment.path)?;
    netns.run(|| {
        let mut alive = BTreeSet::new();
        for family in [AF_INET, AF_INET6] {
            sock_diag::visit(family, Sockets::Connected, until, |socket| {
                alive.extend(Some(sock_diag::cookie(&socket)).filter(|it| wanted.contains(it)));
                ControlFlow::Continue(())
            })?;
        }
        Ok(alive)
    })?
}
