//! Makes sidecars' listeners answer for addresses that are not the pod's (IP_TRANSPARENT).
//!
//! The listener that accepts a forwarded connection answers from the address that was dialed. IPv4 has no route for
//! such an answer unless the listener is transparent; until then the connection waits. The option is set with a pod's first
//! such connection and no earlier: with it, connection tracking treats the pod's other connections differently where
//! istio-init's rules are still there. Only a process that has the
//! socket can set the option, so the agent takes a descriptor for a moment (pidfd_getfd). It may turn out to be
//! another file, because the pod closes and opens files meanwhile, and the close of a file may block forever, also that
//! of a socket that listened a moment ago. Every search therefore runs beside the reconciler's loop, one per pod and a
//! few at a time, and what it took is closed by a thread of its own, of which there is a limited number.

use std::{
    collections::BTreeMap,
    io, mem,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use netlink_packet_sock_diag::inet::InetResponse;
use nix::sys::socket::{setsockopt, sockopt::IpTransparent};
use parking_lot::Mutex;

use super::{Netns, searches::Searches};
use crate::kernel::{
    adoption::{Adoption, FoundSocket},
    netlink::continue_while,
    sock_diag::{self, Sockets},
    sys,
    tasks::Tasks,
};

/// How long a search may take.
const DEADLINE: Duration = Duration::from_secs(1);
/// Searches at a time.
const SEARCHES: usize = 2;
/// Listeners that one search takes.
const MAX_FOUND: usize = 64;
/// Processes that one search looks at, as far as there is time.
const MAX_PROCESSES: usize = 16_384;
/// Searches whose files are being closed at a time.
const MAX_CLOSING: usize = 16;
/// How long listeners are tried to be set back.
const SET_BACK_TIMEOUT: Duration = Duration::from_secs(60);

/// Searches whose files are being closed.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// Searches for listeners that are not transparent.
#[derive(Clone, Debug)]
pub struct Transparency {
    adoption: Arc<Adoption>,
    tasks: Arc<Tasks>,
    searches: Searches,
    /// Those that are not to stay transparent, by the namespace's cookie.
    changed: Arc<Mutex<BTreeMap<u64, Changed<Arc<Netns>>>>>,
}

/// Listeners that were made transparent here.
#[derive(Debug)]
enum Changed<N> {
    /// On these ports, and they are needed.
    Needed(Vec<u16>),
    /// They have to be set back.
    ToSetBack {
        netns: N,
        ports: Vec<u16>,
        /// Then they are left as they are.
        until: Instant,
    },
}

impl<N> Changed<N> {
    fn ports(self) -> Vec<u16> {
        match self {
            Self::Needed(ports) | Self::ToSetBack { ports, .. } => ports,
        }
    }
}

impl Transparency {
    /// Searches with these programs.
    #[must_use]
    pub fn new(adoption: Arc<Adoption>, tasks: Arc<Tasks>) -> Self {
        Self {
            adoption,
            tasks,
            searches: Searches::new(SEARCHES),
            changed: Arc::default(),
        }
    }

    /// Makes the listeners on these ports transparent, some time soon. Those that are to stay so are not set back.
    pub fn set(&self, netns: Arc<Netns>, ports: Vec<u16>, are_to_stay: bool) {
        let cookie = netns.cookie();
        let mut changed = self.changed.lock();
        let before = changed.remove(&cookie);
        if !are_to_stay {
            // Those of a policy before are set back as well.
            let before = before.map_or_else(Vec::new, Changed::ports);
            let others = before.into_iter().filter(|port| !ports.contains(port));
            let all = ports.iter().copied().chain(others).collect();
            changed.insert(cookie, Changed::Needed(all));
        }
        drop(changed);
        self.start(netns, ports, true, move |result| {
            if let Err(problem) = result {
                tracing::warn!(
                    cookie,
                    "make the sidecar's listeners transparent: {problem:#}; until then IPv4 connections that pass through the pod wait"
                );
            }
        });
    }

    /// Sets the listeners of a namespace back where [`Transparency::set`] has changed them.
    pub fn unset(&self, netns: Arc<Netns>) {
        if let Some(changed) = self.changed.lock().get_mut(&netns.cookie())
            && let Changed::Needed(ports) = changed
        {
            let ports = mem::take(ports);
            *changed = Changed::ToSetBack {
                netns,
                ports,
                until: Instant::now() + SET_BACK_TIMEOUT,
            };
        }
        self.set_back();
    }

    /// Continues with what [`Transparency::unset`] could not do at once, because another search was running in the same pod,
    /// also one that makes the same listeners transparent.
    pub fn set_back(&self) {
        let to_set_back: Vec<_> = {
            let changed = self.changed.lock();
            let of = |it: &Changed<Arc<Netns>>| match it {
                Changed::ToSetBack { netns, ports, .. } => Some((Arc::clone(netns), ports.clone())),
                Changed::Needed(_) => None,
            };
            changed.values().filter_map(of).collect()
        };
        for (netns, ports) in to_set_back {
            let (cookie, changed) = (netns.cookie(), Arc::clone(&self.changed));
            self.start(netns, ports, false, move |result| {
                note(&mut changed.lock(), cookie, &result);
            });
        }
    }

    fn start(
        &self,
        netns: Arc<Netns>,
        ports: Vec<u16>,
        wanted: bool,
        end: impl FnOnce(Result<bool>) + Send + 'static,
    ) {
        let (adoption, tasks) = (Arc::clone(&self.adoption), Arc::clone(&self.tasks));
        let changed = Arc::clone(&self.changed);
        let _ = self.searches.start(netns.cookie(), move || {
            let is_to_set_back = || {
                matches!(
                    changed.lock().get(&netns.cookie()),
                    Some(Changed::ToSetBack { .. })
                )
            };
            // One that has waited may be needless by now.
            if !wanted && !is_to_set_back() {
                return;
            }
            end(search((&adoption, &tasks), &netns, &ports, wanted));
        });
    }
}

/// Notes how a search that sets back has ended, unless the listeners are needed again: it is over when one has found none
/// to be set back.
fn note<N>(changed: &mut BTreeMap<u64, Changed<N>>, cookie: u64, result: &Result<bool>) {
    let Some(Changed::ToSetBack { until, .. }) = changed.get(&cookie) else {
        return;
    };
    let is_late = Instant::now() >= *until;
    if is_late && !matches!(result, Ok(true)) {
        let why = result.as_ref().err();
        let why = why.map_or_else(|| "some were not found".to_owned(), |it| format!("{it:#}"));
        tracing::warn!(
            cookie,
            "the sidecar's listeners stay transparent, they could not be set back for {SET_BACK_TIMEOUT:?}: {why}"
        );
    }
    if is_late || matches!(result, Ok(true)) {
        changed.remove(&cookie);
    }
}

/// Answers whether all listeners were as wanted before.
fn search(
    (adoption, tasks): (&Adoption, &Tasks),
    netns: &Netns,
    ports: &[u16],
    wanted: bool,
) -> Result<bool> {
    let until = Instant::now() + DEADLINE;
    let others = listeners_that_differ(netns, ports, wanted, until)?;
    if others.is_empty() {
        return Ok(true);
    }
    let pids = tasks.list(netns.inode(), MAX_PROCESSES);
    let pids = pids.context("list the pod's processes")?;
    let found = adoption.find(&others, &pids, until);
    let found = found.context("look for their descriptors")?;
    let closing = CLOSING.load(Ordering::Relaxed);
    ensure!(
        closing < MAX_CLOSING,
        "the files of {closing} searches do not close"
    );
    let mut copies = Copies::default();
    for socket in found.iter().take(MAX_FOUND) {
        copies.set_transparent(socket, wanted)?;
    }
    Ok(false)
}

/// Cookies of the listeners on some ports that are not as wanted.
fn listeners_that_differ(
    netns: &Netns,
    ports: &[u16],
    wanted: bool,
    until: Instant,
) -> Result<Vec<u64>> {
    let listed = netns.run(|| -> io::Result<Vec<u64>> {
        let mut found = Vec::new();
        sock_diag::visit(Sockets::Listening, until, |socket| {
            let is_on_port = ports.contains(&socket.header.socket_id.source_port);
            if is_on_port && is_transparent(&socket) != wanted {
                found.push(sock_diag::cookie(&socket));
            }
            continue_while(found.len() < MAX_FOUND)
        })?;
        Ok(found)
    });
    listed?.context("list listening sockets")
}

/// A bit of `struct inet_diag_sockopt` of linux/inet_diag.h.
fn is_transparent(socket: &InetResponse) -> bool {
    const INET_DIAG_SOCKOPT: u16 = 22;
    const TRANSPARENT: u8 = 1 << 5;
    let bits = sock_diag::attribute(socket, INET_DIAG_SOCKOPT);
    bits.is_some_and(|bits| bits.first().is_some_and(|it| it & TRANSPARENT != 0))
}

/// Copies of descriptors of a pod's processes that a search has made.
#[derive(Debug, Default)]
struct Copies(Vec<OwnedFd>);

impl Copies {
    fn set_transparent(&mut self, socket: &FoundSocket, wanted: bool) -> Result<()> {
        const SO_COOKIE: i32 = 57;
        let Ok(fd) = sys::descriptor_of(socket.pid, socket.fd) else {
            // The process has ended, or has closed it.
            return Ok(());
        };
        self.0.push(fd);
        let fd = self.0.last().context("it was put there")?.as_fd();
        if sys::socket_option_u64(fd, SO_COOKIE).ok() != Some(socket.cookie) {
            return Ok(());
        }
        setsockopt(&fd, IpTransparent, &wanted).context("set IP_TRANSPARENT")
    }
}

impl Drop for Copies {
    /// Closes them beside the search.
    fn drop(&mut self) {
        let files = mem::take(&mut self.0);
        if files.is_empty() {
            return;
        }
        CLOSING.fetch_add(1, Ordering::Relaxed);
        let close = move || {
            drop(files);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = thread::Builder::new().spawn(close) {
            // They were closed by the attempt.
            CLOSING.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("start a thread that closes files of a pod's: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
