//! What the pods' sidecars do that no map says: connections that wait for them to accept, whether they receive DNS
//! queries, and whether they listen with MPTCP.
//!
//! One pass over all listeners says which sidecars hang, and costs no more where many pods are. Only into the pods of
//! those is looked further, for a bounded time: the number of their connections may be missing, never that they hang. No
//! program sees that a UDP socket is bound or closed, and no map holds an MPTCP socket: the sockets of pods with either
//! are listed in turns.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use sidetrack_common::{
    conn::ListenerQueue,
    names::{MPTCP_INBOUND, MPTCP_OUTBOUND},
};
use sidetrack_datapath::{
    kernel::{maps::Maps, queues::Queues},
    netns::{Netns, connecting, listeners, resolver},
};
use sidetrack_live::Queue;

use crate::api::{NetnsStatus, PodStatus};

/// How long a look counts as what is so now.
const LOOK_TTL: Duration = Duration::from_secs(10);
/// How long counting the connections of all pods whose sidecar hangs may take.
const COUNT_TIMEOUT: Duration = Duration::from_millis(200);

/// How long the sockets of a pod whose sidecar has all of them are not listed again. Those of the others are at every look.
const LIST_INTERVAL: Duration = Duration::from_secs(8);
/// How long listing the sockets of all pods may take.
const LIST_TIMEOUT: Duration = Duration::from_millis(100);

/// What waits, by the cookie of the pod's network namespace.
type QueueByPod = HashMap<u64, Queue>;
/// Which sockets a pod's sidecar has, by the same.
type ListedByPod = HashMap<u64, Listed>;

/// Which sockets of a pod's sidecar were there when they were listed; `None` of those that are not asked for, or that could
/// not be listed.
#[derive(Clone, Copy, Debug)]
struct Listed {
    at: Instant,
    /// A UDP socket for DNS queries.
    dns: Option<bool>,
    /// MPTCP listeners on the outbound and on the inbound port.
    mptcp: [Option<bool>; 2],
}

/// The sockets of a pod that are listed.
struct Asked<'a> {
    netns: &'a NetnsStatus,
    dns: Option<u16>,
    mptcp: [Option<u16>; 2],
}

impl<'a> Asked<'a> {
    /// `None` where the maps know all. `bits` are what the kernel has seen of the sidecar.
    fn of(pod: &'a PodStatus, bits: u32) -> Option<Self> {
        let (netns, policy) = pod.netns.as_ref().zip(pod.policy.as_ref())?;
        let port = |bit, port| (bits & bit != 0).then_some(port);
        let mptcp = [
            port(MPTCP_OUTBOUND, policy.outbound_port),
            port(MPTCP_INBOUND, policy.inbound_port),
        ];
        let dns = policy.dns_block().map(|block| block.port());
        let asks = dns.is_some() || mptcp != [None; 2];
        asks.then_some(Self { netns, dns, mptcp })
    }

    fn list(&self, until: Instant) -> Listed {
        let netns = open(self.netns);
        let dns = |port| resolver::is_served(netns.as_ref()?, port, until).ok();
        let served = (self.mptcp != [None; 2])
            .then(|| listeners::served(netns.as_ref()?, self.mptcp, until).ok());
        let [outbound, inbound] = served.flatten().map_or([None; 2], |it| it.map(Some));
        Listed {
            at: Instant::now(),
            dns: self.dns.and_then(dns),
            mptcp: [
                outbound.filter(|_| self.mptcp[0].is_some()),
                inbound.filter(|_| self.mptcp[1].is_some()),
            ],
        }
    }

    /// Whether every socket that is asked for was there.
    fn has_all(&self, listed: &Listed) -> bool {
        let there = |is_asked: bool, is_there| !is_asked || is_there == Some(true);
        let mptcp = self.mptcp.iter().zip(listed.mptcp);
        there(self.dns.is_some(), listed.dns)
            && mptcp
                .into_iter()
                .all(|(port, is_there)| there(port.is_some(), is_there))
    }
}

/// What one look at the sockets of sidecars has found.
#[derive(Clone, Debug, Default)]
pub struct SidecarSockets {
    /// `None` where the kernel does not list them.
    queues: Option<QueueByPod>,
    listed: ListedByPod,
    /// Cookies of the listening sockets that are in the kernel's map, by the cookie of the pod's network namespace.
    listeners: HashMap<u64, HashSet<u64>>,
}

impl SidecarSockets {
    /// What waits in a pod; `None` if that is not known.
    #[must_use]
    pub fn queue(&self, cookie: u64) -> Option<Queue> {
        let queues = self.queues.as_ref()?;
        Some(queues.get(&cookie).copied().unwrap_or_default())
    }

    /// Whether a pod's sidecar receives DNS queries over UDP; `None` if it is to get none, or that is not known.
    #[must_use]
    pub fn receives_dns(&self, cookie: u64) -> Option<bool> {
        self.listed.get(&cookie)?.dns
    }

    /// Whether a pod's sidecar listens on its outbound and inbound port with MPTCP; `None` if it never has, or that is not
    /// known.
    #[must_use]
    pub fn listens_with_mptcp(&self, cookie: u64) -> [Option<bool>; 2] {
        self.listed
            .get(&cookie)
            .map_or([None; 2], |listed| listed.mptcp)
    }
}

/// The last look.
#[derive(Debug)]
pub struct Sidecars {
    queues: Option<Arc<Queues>>,
    last: RwLock<Option<(Instant, Arc<SidecarSockets>)>>,
}

impl Sidecars {
    /// Nothing is known yet. Without `queues` it stays so of what waits.
    #[must_use]
    pub fn new(queues: Option<Arc<Queues>>) -> Self {
        Self {
            queues,
            last: RwLock::default(),
        }
    }

    /// What was so a moment ago; `None` if there was no look.
    #[must_use]
    pub fn last(&self) -> Option<Arc<SidecarSockets>> {
        let last = self.last.read();
        let (at, look) = last.as_ref()?;
        (at.elapsed() < LOOK_TTL).then(|| Arc::clone(look))
    }

    /// Looks, for as long as it takes. Answers in which pods all listening sockets are other ones than at the last look.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn look(&self, maps: &Maps, pods: &[PodStatus]) -> io::Result<HashSet<u64>> {
        let queues = self.queues.as_ref();
        let rows = queues.map_or(Ok(Vec::new()), |queues| queues.read())?;
        let mut listeners: HashMap<u64, HashSet<u64>> = HashMap::new();
        for row in &rows {
            listeners
                .entry(row.key.netns)
                .or_default()
                .insert(row.socket);
        }
        let mut by_pod = by_pod(&rows);
        let until = Instant::now() + COUNT_TIMEOUT;
        if by_pod.values().any(Queue::hangs) {
            // The programs' own counts of rows may be off by a few.
            let rows = maps.handshakes.keys()?;
            for row in rows {
                if let Some(queue) = by_pod.get_mut(&row.netns) {
                    queue.waiting += 1;
                }
            }
        }
        for pod in pods {
            let queue = pod.netns.as_ref().and_then(|it| by_pod.get_mut(&it.cookie));
            if let Some(queue) = queue.filter(|queue| queue.hangs() && Instant::now() < until) {
                queue.waiting += unanswered(pod, until);
            }
        }
        let before = self.last.read().as_ref().map(|(_, look)| Arc::clone(look));
        let before = before.unwrap_or_default();
        let bits = maps.sidecar_bits.rows()?.into_iter().collect();
        let replaced = replaced(&before.listeners, &listeners);
        let look = SidecarSockets {
            queues: queues.map(|_| by_pod),
            listed: listed(pods, &bits, &before.listed),
            listeners,
        };
        *self.last.write() = Some((Instant::now(), Arc::new(look)));
        Ok(replaced)
    }
}

/// Lists the sockets of the pods that are due, as far as there is time: of those first that were not looked at for longest.
fn listed(pods: &[PodStatus], bits: &HashMap<u64, u32>, before: &ListedByPod) -> ListedByPod {
    let until = Instant::now() + LIST_TIMEOUT;
    let mut by_pod = ListedByPod::new();
    let mut due = Vec::new();
    for pod in pods {
        let bits = pod.netns.as_ref().and_then(|it| bits.get(&it.cookie));
        let Some(asked) = Asked::of(pod, bits.copied().unwrap_or_default()) else {
            continue;
        };
        let cookie = asked.netns.cookie;
        let last = before.get(&cookie).copied();
        by_pod.extend(last.map(|last| (cookie, last)));
        let is_fresh = |it: Listed| asked.has_all(&it) && it.at.elapsed() < LIST_INTERVAL;
        if !last.is_some_and(is_fresh) {
            due.push((last.map(|last| last.at), asked));
        }
    }
    due.sort_by_key(|(at, _)| *at);
    for (_, asked) in due {
        if Instant::now() > until {
            break;
        }
        by_pod.insert(asked.netns.cookie, asked.list(until));
    }
    by_pod
}

/// The pods that listened before and do now, by no socket that is the same.
fn replaced(before: &HashMap<u64, HashSet<u64>>, now: &HashMap<u64, HashSet<u64>>) -> HashSet<u64> {
    let is_other = |(pod, sockets): &(&u64, &HashSet<u64>)| {
        before
            .get(pod)
            .is_some_and(|before| before.is_disjoint(sockets))
    };
    let others = now.iter().filter(is_other);
    others.map(|(pod, _)| *pod).collect()
}

/// The network namespace of a pod, if it is there.
fn open(netns: &NetnsStatus) -> Option<Netns> {
    let opened = Netns::open(netns.path.as_ref()).ok();
    opened.filter(|opened| opened.cookie() == netns.cookie)
}

/// Adds up the sockets of each pod.
fn by_pod(rows: &[ListenerQueue]) -> QueueByPod {
    let mut seen = HashSet::new();
    let mut by_pod = QueueByPod::new();
    for row in rows.iter().filter(|row| seen.insert(row.socket)) {
        let queue = by_pod.entry(row.key.netns).or_default();
        queue.waiting += u64::from(row.waiting);
        queue.is_full |= row.waiting > row.limit;
        let age = (row.oldest_us > 0).then(|| Duration::from_micros(row.oldest_us));
        queue.oldest = queue.oldest.max(age);
    }
    by_pod
}

/// Connections of a pod to targets of their own that the kernel has not answered, as far as there is time to count them.
/// They have no row.
fn unanswered(pod: &PodStatus, until: Instant) -> u64 {
    let Some(netns) = &pod.netns else { return 0 };
    let opened = open(netns);
    let port = pod.policy.as_ref().map(|policy| policy.outbound_port);
    let sockets = opened
        .zip(port)
        .and_then(|(opened, port)| connecting::count(&opened, port, until).ok());
    sockets.unwrap_or_default()
}

#[cfg(test)]
mod tests;
