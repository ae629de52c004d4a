//! Destinations of departed pods. Their rows are what open connections get their names from, so that
//! they stay until the last of these is closed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::{
    constants::{TCP_CLOSING, TCP_FIN_WAIT1, TCP_FIN_WAIT2, TCP_LAST_ACK},
    inet::InetResponseHeader,
};
use parking_lot::Mutex;
use sidetrack_common::{
    addr::Addr,
    conn::DestinationKey,
    names::{DESTINATION_QUOTA, POOL_IN_USE},
    target::{Target, is_dedicated},
};

use crate::{
    kernel::{
        maps::Maps,
        sock_diag::{self, Sockets},
    },
    netns::{Netns, target_route},
};

/// A connect that had read the pod's row before it was removed has its socket by then.
const GRACE: Duration = Duration::from_secs(1);
/// How long all pods together may take.
const WAIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Namespaces of departed pods, by cookie, as long as they may have rows.
#[derive(Debug, Default)]
pub struct Departed {
    /// With the time at which the pod departed.
    namespaces: Mutex<BTreeMap<u64, (Arc<Netns>, Instant)>>,
    /// The one that was looked into last.
    last: AtomicU64,
}

impl Departed {
    /// A pod leaves. Its namespace is kept until its rows are gone.
    pub(super) fn add(&self, cookie: u64, netns: Arc<Netns>) {
        self.namespaces
            .lock()
            .insert(cookie, (netns, Instant::now()));
    }

    /// Removes rows of departed pods that no open connection needs. Takes a while at most; the next
    /// time it continues with the pod after the last one.
    ///
    /// # Errors
    /// If a map cannot be read or written, or a pod not be looked into.
    pub fn sweep(&self, maps: &Maps) -> Result<()> {
        let until = Instant::now() + WAIT_TIMEOUT;
        let mut departed = BTreeSet::new();
        let mut from_pool = 0;
        for (netns, own) in maps.destinations_by_pod.rows()? {
            if netns == POOL_IN_USE {
                continue;
            }
            from_pool += own.saturating_sub(DESTINATION_QUOTA);
            if maps.pods.get(&netns)?.is_none() {
                departed.insert(netns);
            }
        }
        set_pool_in_use(from_pool, maps)?;
        // Not of pods that never connected, or are back.
        self.namespaces
            .lock()
            .retain(|netns, _| departed.contains(netns));
        if departed.is_empty() {
            return Ok(());
        }
        let mut rows: BTreeMap<u64, Vec<DestinationKey>> = BTreeMap::new();
        for key in maps.destinations.keys()? {
            rows.entry(key.netns).or_default().push(key);
        }
        let mut result = Ok(());
        let last = self.last.load(Ordering::Relaxed);
        let (before, after): (Vec<u64>, Vec<u64>) =
            departed.into_iter().partition(|it| *it <= last);
        for netns in after.into_iter().chain(before) {
            if Instant::now() >= until {
                break;
            }
            self.last.store(netns, Ordering::Relaxed);
            let keys = rows.remove(&netns).unwrap_or_default();
            let removed = self.remove(netns, &keys, maps, until);
            result = result.and(removed);
        }
        result.context("remove the destinations of a departed pod")
    }

    fn remove(
        &self,
        netns: u64,
        keys: &[DestinationKey],
        maps: &Maps,
        until: Instant,
    ) -> Result<()> {
        let namespace = self.namespaces.lock().get(&netns).cloned();
        let in_use = match &namespace {
            Some((_, since)) if since.elapsed() < GRACE => return Ok(()),
            Some(_) if keys.is_empty() => BTreeSet::new(),
            Some((namespace, _)) => targets_in_use(namespace, until)?.targets,
            // It departed while another agent ran.
            None => BTreeSet::new(),
        };
        let mut kept = 0_u64;
        for key in keys {
            if in_use.contains(&key.target_be) {
                kept += 1;
            } else {
                maps.destinations.remove(key)?;
            }
        }
        if kept == 0 {
            maps.destinations_by_pod.remove(&netns)?;
            if let Some((namespace, _)) = namespace {
                let removed = namespace.run(target_route::remove)?;
                removed.context("remove the route to IPv6 targets")?;
            }
        } else {
            maps.destinations_by_pod.insert(&netns, &kept)?;
        }
        Ok(())
    }
}

/// Corrects how much of the pool is in use: rows that are removed are not counted where they are. Rows that connect adds
/// meanwhile are missing until the next time.
fn set_pool_in_use(rows: u64, maps: &Maps) -> Result<()> {
    let counted = maps.destinations_by_pod.get(&POOL_IN_USE)?;
    if rows == 0 && counted.is_some() {
        maps.destinations_by_pod.remove(&POOL_IN_USE)?;
    } else if rows != counted.unwrap_or_default() {
        maps.destinations_by_pod.insert(&POOL_IN_USE, &rows)?;
    }
    Ok(())
}

/// What sockets have as destinations.
pub(super) struct InUse {
    /// Targets, as in a destination's key.
    pub targets: BTreeSet<[u32; 2]>,
    /// Whether those of UDP sockets are unknown: a kernel without CONFIG_INET_UDP_DIAG lists none.
    pub without_udp: bool,
}

/// Targets that a socket of the namespace, which someone may ask for its destination, has at either end.
pub(super) fn targets_in_use(netns: &Netns, until: Instant) -> Result<InUse> {
    let listed = list_targets(netns, until, &[Sockets::Open, Sockets::Sending]);
    let without_udp = listed.as_ref().is_err_and(|error| {
        let errno = error.downcast_ref().and_then(io::Error::raw_os_error);
        errno == Some(libc::ENOENT)
    });
    Ok(InUse {
        targets: match without_udp {
            true => list_targets(netns, until, &[Sockets::Open])?,
            false => listed?,
        },
        without_udp,
    })
}

fn list_targets(netns: &Netns, until: Instant, kinds: &[Sockets]) -> Result<BTreeSet<[u32; 2]>> {
    let mut in_use = BTreeSet::new();
    netns
        .run(|| {
            for sockets in kinds {
                sock_diag::visit(*sockets, until, |socket| {
                    let id = &socket.header.socket_id;
                    if can_be_asked(&socket.header) {
                        let ends = [id.source_address, id.destination_address];
                        in_use.extend(ends.into_iter().filter_map(target));
                    }
                    ControlFlow::Continue(())
                })?;
            }
            io::Result::Ok(())
        })?
        .context("list its sockets")?;
    Ok(in_use)
}

/// Whether a process has the socket, or may accept it yet. One that is closed has no inode, and neither has one that is
/// not accepted; the kernel continues with the former alone until its peer has heard of it.
fn can_be_asked(socket: &InetResponseHeader) -> bool {
    match socket.state {
        TCP_FIN_WAIT1 | TCP_FIN_WAIT2 | TCP_CLOSING | TCP_LAST_ACK => socket.inode != 0,
        _ => true,
    }
}

fn target(addr: IpAddr) -> Option<[u32; 2]> {
    let addr = Addr::from(addr);
    let any_port = Target { addr, port: 0 };
    is_dedicated(addr).then(|| DestinationKey::new(0, any_port).target_be)
}
