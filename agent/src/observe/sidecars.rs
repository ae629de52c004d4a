//! What the pods' sidecars do that no map says: connections that wait for them to accept, and whether they receive DNS
//! queries.
//!
//! One pass over all listeners says which sidecars hang, and costs no more where many pods are. Only into the pods of
//! those is looked further, for a bounded time: the number of their connections may be missing, never that they hang. No
//! program sees that a UDP socket is bound or closed: pods with DNS capture are looked at in turns.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use sidetrack_common::conn::ListenerQueue;
use sidetrack_datapath::{
    kernel::{maps::Maps, queues::Queues},
    netns::{Netns, connecting, resolver},
};
use sidetrack_live::Queue;

use crate::api::{NetnsStatus, PodStatus};

/// How long a look counts as what is so now.
const LOOK_TTL: Duration = Duration::from_secs(10);
/// How long counting the connections of all pods whose sidecar hangs may take.
const COUNT_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a pod whose sidecar receives DNS queries is not looked at again. The others are at every look.
const DNS_INTERVAL: Duration = Duration::from_secs(8);
/// How long looking at the sockets for DNS queries of all pods may take.
const DNS_TIMEOUT: Duration = Duration::from_millis(100);

/// What waits, by the cookie of the pod's network namespace.
type QueueByPod = HashMap<u64, Queue>;
/// Whether the sidecar receives DNS queries, and when that was looked at, by the same.
type DnsByPod = HashMap<u64, (Instant, Option<bool>)>;

/// What one look at the sockets of sidecars has found.
#[derive(Clone, Debug, Default)]
pub struct SidecarSockets {
    queues: QueueByPod,
    dns: DnsByPod,
}

impl SidecarSockets {
    /// What waits in a pod.
    #[must_use]
    pub fn queue(&self, cookie: u64) -> Queue {
        self.queues.get(&cookie).copied().unwrap_or_default()
    }

    /// Whether a pod's sidecar receives DNS queries over UDP; `None` if it is to get none, or that is not known.
    #[must_use]
    pub fn receives_dns(&self, cookie: u64) -> Option<bool> {
        self.dns.get(&cookie)?.1
    }
}

/// The last look.
#[derive(Debug)]
pub struct Sidecars {
    queues: Option<Arc<Queues>>,
    last: RwLock<Option<(Instant, Arc<SidecarSockets>)>>,
}

impl Sidecars {
    /// Nothing is known yet. Without `queues` it stays so.
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

    /// Looks, for as long as it takes.
    ///
    /// # Errors
    /// If the kernel cannot be asked.
    pub fn look(&self, maps: &Maps, pods: &[PodStatus]) -> io::Result<()> {
        let Some(queues) = &self.queues else {
            return Ok(());
        };
        let mut by_pod = by_pod(&queues.read()?);
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
        let look = SidecarSockets {
            queues: by_pod,
            dns: dns_by_pod(
                pods,
                before.as_ref().map_or(&DnsByPod::new(), |look| &look.dns),
            ),
        };
        *self.last.write() = Some((Instant::now(), Arc::new(look)));
        Ok(())
    }
}

/// Looks at the sockets of the pods that are due, as far as there is time: at those first that were not looked at for
/// longest.
fn dns_by_pod(pods: &[PodStatus], before: &DnsByPod) -> DnsByPod {
    let until = Instant::now() + DNS_TIMEOUT;
    let mut by_pod = DnsByPod::new();
    let mut due = Vec::new();
    for pod in pods {
        let block = pod.policy.as_ref().and_then(|policy| policy.dns_block());
        let Some((netns, block)) = pod.netns.as_ref().zip(block) else {
            continue;
        };
        let last = before.get(&netns.cookie).copied();
        by_pod.extend(last.map(|last| (netns.cookie, last)));
        let is_fresh = |(at, receives): (Instant, Option<bool>)| {
            receives == Some(true) && at.elapsed() < DNS_INTERVAL
        };
        if !last.is_some_and(is_fresh) {
            due.push((last.map(|(at, _)| at), netns, block.port()));
        }
    }
    due.sort_by_key(|(at, ..)| *at);
    for (_, netns, port) in due {
        let now = Instant::now();
        if now > until {
            break;
        }
        let receives = open(netns).and_then(|it| resolver::is_served(&it, port, until).ok());
        by_pod.insert(netns.cookie, (now, receives));
    }
    by_pod
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
