//! Listeners that were open before their pod was enrolled: finds them and has them put into the listener
//! map, so that running sidecars need no restart.
//!
//! A pod can have any number of processes, open files and sockets. Every search therefore has a deadline
//! and runs beside the reconciler's loop, a few at a time and one per pod.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::inet::{InetResponse, nlas::Nla};
use sidetrack_common::{
    addr::Family,
    conn::{ListenerKey, ON_LOOPBACK, WantedListener},
    names::{self, LISTENER_SLOTS, listener_slots},
    pod::RouteKey,
    target::is_dedicated,
};

use super::{Netns, searches::Searches};
use crate::kernel::{
    adoption::Adoption,
    netlink::continue_while,
    sock_diag::{self, Sockets},
    tasks::Tasks,
};

/// How long the reconciler waits for a search. A pod of the usual size takes a few milliseconds.
const WAIT_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a search may take.
const DEADLINE: Duration = Duration::from_secs(1);
/// Searches at a time.
const SEARCHES: usize = 4;
/// How long a look for one listener may keep the reconciler.
const QUICK: Duration = Duration::from_millis(100);
/// Processes that are looked at one by one: an iterator for each costs more than it spares if there are many. The files
/// of a crowd are looked at with those of all other processes.
const MAX_SINGLE: usize = 512;

/// The only addresses of loopback that a search finds.
const LOCALHOST: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// Searches for listeners.
#[derive(Clone, Debug)]
pub struct Adopter {
    shared: Arc<Shared>,
    searches: Searches,
}

#[derive(Debug)]
struct Shared {
    adoption: Arc<Adoption>,
    tasks: Arc<Tasks>,
    /// Rotates the order of processes, so that no process can keep others from being seen forever.
    turn: AtomicUsize,
}

/// Whose listeners to search for.
#[derive(Clone, Debug)]
pub struct Search {
    /// The network namespace.
    pub netns: Arc<Netns>,
    /// Ports on which the sidecar receives connections.
    pub ports: Vec<u16>,
    /// Outbound capture port.
    pub outbound_port: u16,
    /// Inbound capture port.
    pub inbound_port: u16,
    /// Whether the process with the listeners is outside the pod.
    pub is_outside: bool,
}

impl Search {
    /// Whether a listener is on one of the ports, and at an address where connections to this port may arrive: iptables sends
    /// outbound ones to loopback, unless one listens on all addresses.
    fn wants(&self, listening: &Listening) -> bool {
        let address = listening.address;
        let is_elsewhere = !address.is_loopback()
            && (listening.port != self.outbound_port || listening.port == self.inbound_port);
        self.ports.contains(&listening.port)
            && (address.is_unspecified() || LOCALHOST.contains(&address) || is_elsewhere)
    }

    /// The bits of a listener in SIDECAR_BY_POD.
    fn bits(&self, listening: &Listening) -> u32 {
        let (on_loopback, mptcp) = if listening.port == self.outbound_port {
            (names::LOOPBACK_OUTBOUND, names::MPTCP_OUTBOUND)
        } else if listening.port == self.inbound_port {
            (names::LOOPBACK_INBOUND, names::MPTCP_INBOUND)
        } else {
            (0, 0)
        };
        if listening.address.is_loopback() {
            on_loopback
        } else if listening.is_mptcp {
            mptcp
        } else {
            0
        }
    }
}

impl Adopter {
    /// Searches with these programs.
    #[must_use]
    pub fn new(adoption: Arc<Adoption>, tasks: Arc<Tasks>) -> Self {
        Self {
            shared: Arc::new(Shared {
                adoption,
                tasks,
                turn: AtomicUsize::new(0),
            }),
            searches: Searches::new(SEARCHES),
        }
    }

    /// Starts a search and waits a moment for its end. A search that takes longer continues by itself, and one that cannot
    /// begin at once begins after others. What is not found stays out of the map: inbound connections are refused, and a
    /// later search tries again.
    pub async fn search(&self, search: Search) {
        let shared = Arc::clone(&self.shared);
        let started = self
            .searches
            .start(search.netns.cookie(), move || shared.run(&search));
        if let Some(work) = started {
            let _ = tokio::time::timeout(WAIT_TIMEOUT, work).await;
        }
    }

    /// Drops a search of a pod that is released, if it has not begun.
    pub fn cancel(&self, cookie: u64) {
        self.searches.cancel(cookie);
    }
}

impl Shared {
    fn run(&self, search: &Search) {
        let cookie = search.netns.cookie();
        match self.adopt(search, Instant::now() + DEADLINE) {
            Ok(0) => {}
            Ok(missed) => tracing::warn!(
                cookie,
                missed,
                "open listeners of the sidecar could not be adopted, so inbound connections may be refused: restart the sidecar, unless `sidetrack status` shows that the map of listeners is full"
            ),
            Err(problem) => tracing::warn!(
                cookie,
                "look for the sidecar's open listeners: {problem:#}; inbound connections are refused until they are found"
            ),
        }
    }

    /// Puts the listeners of some ports into the map, of those on loopback the ones that take outbound connections.
    /// Answers how many are there and could not be stored.
    fn adopt(&self, search: &Search, until: Instant) -> Result<usize> {
        let netns = &*search.netns;
        let mut wanted = Vec::new();
        let mut found = self.listening(search, until)?;
        let bits = found.iter().fold(0, |bits, it| bits | search.bits(it));
        if bits != 0 {
            let known = self.adoption.sidecar_bits.get(&netns.cookie());
            let known = known.context("read what is known of the sidecar")?;
            self.adoption
                .sidecar_bits
                .insert(&netns.cookie(), &(known.unwrap_or_default() | bits))
                .context("note how the sidecar listens")?;
        }
        // No map can hold them.
        found.retain(|it| !it.is_mptcp);
        let takes_connections =
            |it: &&Listening| !it.address.is_loopback() || it.port == search.outbound_port;
        for listening in found.iter().filter(takes_connections) {
            wanted.extend(self.missing(netns.cookie(), listening)?);
        }
        if wanted.is_empty() {
            return Ok(0);
        }
        if search.is_outside {
            let walk = "walk over the open files of the node's processes";
            return self.adoption.run(&wanted, None, until).context(walk);
        }
        let pids = self.tasks.list(netns.inode(), MAX_SINGLE + 1);
        let mut pids = pids.context("list the pod's processes")?;
        let walk = "walk over the open files of the pod's processes";
        if pids.len() > MAX_SINGLE {
            return self.adoption.run(&wanted, None, until).context(walk);
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = pids.len().max(1);
        pids.rotate_left(first % count);
        self.adoption.run(&wanted, Some(&pids), until).context(walk)
    }

    /// Those that a search is for: on the ports where the sidecar receives connections, at addresses where these may arrive.
    /// Any process can open any number of sockets beside them. Of each kind as many count as the map has slots.
    fn listening(&self, search: &Search, until: Instant) -> Result<Vec<Listening>> {
        let cookie = search.netns.cookie();
        let mut found = Vec::new();
        let mut counts: HashMap<_, u32> = HashMap::new();
        let mut problem = None;
        visit(&search.netns, until, |listening| {
            if !search.wants(&listening) {
                return ControlFlow::Continue(());
            }
            let kind = (
                listening.port,
                listening.place(),
                listening.address.is_ipv6(),
                listening.is_mptcp,
            );
            let count = counts.entry(kind).or_default();
            if *count == LISTENER_SLOTS {
                return ControlFlow::Continue(());
            }
            match self.is_at_own_address(cookie, &listening) {
                Ok(true) => {
                    *count += 1;
                    found.push(listening);
                }
                Ok(false) => {}
                Err(error) => problem = Some(error),
            }
            continue_while(problem.is_none())
        })?;
        problem.map_or(Ok(found), Err)
    }

    /// Whether a listener is on all addresses, on loopback, or on one of the pod's, as far as its routes are known: any process
    /// may bind another one, and one of targets.
    fn is_at_own_address(&self, netns: u64, socket: &Listening) -> Result<bool> {
        if socket.address.is_unspecified() || socket.address.is_loopback() {
            return Ok(true);
        }
        let key = RouteKey::host((netns, 0), socket.address.into());
        let route = self.adoption.routes.get(&key);
        let route = route.context("read the pod's routes")?;
        let is_own = route.is_some_and(|route| route.is_local() || route.is_unknown());
        Ok(is_own && !is_dedicated(socket.address.into()))
    }

    /// What of a listener has to be stored; `None` if it is known for every family that it may serve.
    fn missing(&self, netns: u64, socket: &Listening) -> Result<Option<(u64, WantedListener)>> {
        let mut wanted = WantedListener {
            netns,
            port: socket.port,
            v4: 0,
            v6: 0,
            adopted: 0,
            fd: 0,
            on_loopback: u32::from(socket.place()),
        };
        for family in socket.families {
            let is_missing = self.is_missing(netns, *family, socket)?;
            match family {
                Family::V4 => wanted.v4 = u8::from(is_missing),
                Family::V6 => wanted.v6 = u8::from(is_missing),
            }
        }
        Ok((wanted.v4 + wanted.v6 > 0).then_some((socket.cookie, wanted)))
    }

    /// Whether a listener has no slot and there is one for it. Where all slots are used they lead to the
    /// whole group.
    fn is_missing(&self, netns: u64, family: Family, socket: &Listening) -> Result<bool> {
        let mut has_room = false;
        for slot in 0..listener_slots(socket.place()) {
            let key = ListenerKey {
                netns,
                family: family as u16 | socket.place(),
                port: socket.port,
                slot,
            };
            let cookie = self.adoption.listeners.get(&key);
            match cookie.context("read the listener map")? {
                Some(cookie) if cookie == socket.cookie => return Ok(false),
                Some(_) => {}
                None => has_room = true,
            }
        }
        Ok(has_room)
    }
}

/// Whether a process listens on the outbound port, at all addresses.
pub fn is_served(netns: &Netns, outbound_port: u16) -> Result<bool> {
    Ok(served(netns, [Some(outbound_port), None], Instant::now() + QUICK)?[0])
}

/// The same of the outbound port and of the inbound one, as far as they are given. The latter counts at any address but those
/// of loopback.
pub fn served(netns: &Netns, ports: [Option<u16>; 2], until: Instant) -> Result<[bool; 2]> {
    let mut found = ports.map(|port| port.is_none());
    visit(netns, until, |listening| {
        let address = listening.address;
        let counts = [address.is_unspecified(), !address.is_loopback()];
        for ((port, counts), found) in ports.iter().zip(counts).zip(&mut found) {
            *found |= counts && *port == Some(listening.port);
        }
        continue_while(found.contains(&false))
    })?;
    Ok(found)
}

/// A listening socket.
struct Listening {
    /// IPv4 where an IPv6 socket has it in v4-mapped form.
    address: IpAddr,
    port: u16,
    /// Those it serves.
    families: &'static [Family],
    /// `SO_COOKIE`.
    cookie: u64,
    /// Whether it is the first subflow of an MPTCP socket.
    is_mptcp: bool,
}

impl Listening {
    /// See [`ListenerKey::family`].
    const fn place(&self) -> u16 {
        if self.address.is_loopback() {
            ON_LOOPBACK
        } else {
            0
        }
    }
}

/// The families that a listener serves.
fn families(address: IpAddr, socket: &InetResponse) -> &'static [Family] {
    match address {
        IpAddr::V4(_) => &[Family::V4],
        IpAddr::V6(address) if address.is_unspecified() && !is_v6_only(socket) => {
            &[Family::V6, Family::V4]
        }
        IpAddr::V6(_) => &[Family::V6],
    }
}

fn is_v6_only(socket: &InetResponse) -> bool {
    let mut attributes = socket.nlas.iter();
    attributes.any(|attribute| matches!(attribute, Nla::SkV6Only(is_set) if *is_set))
}

/// Whether a TCP socket has the upper layer protocol `mptcp` (`INET_DIAG_ULP_INFO`).
fn is_mptcp(socket: &InetResponse) -> bool {
    const INET_DIAG_ULP_INFO: u16 = 19;
    const INET_ULP_INFO_NAME: u16 = 1;
    let info = sock_diag::attribute(socket, INET_DIAG_ULP_INFO);
    info.is_some_and(|info| {
        sock_diag::nested(&info, INET_ULP_INFO_NAME).is_some_and(|it| it.starts_with(b"mptcp"))
    })
}

/// Visits the listening sockets of a namespace.
fn visit(
    netns: &Netns,
    until: Instant,
    mut each: impl FnMut(Listening) -> ControlFlow<()> + Send,
) -> Result<()> {
    netns
        .run(|| {
            sock_diag::visit(Sockets::Listening, until, |socket| {
                let id = &socket.header.socket_id;
                let address = id.source_address.to_canonical();
                each(Listening {
                    address,
                    port: id.source_port,
                    families: families(address, &socket),
                    cookie: sock_diag::cookie(&socket),
                    is_mptcp: is_mptcp(&socket),
                })
            })
        })?
        .context("list listening sockets")
}
