//! Connections that wait for the pods' sidecars to accept them.
//!
//! One pass over all listeners says which sidecars hang, and costs no more where many pods are. Only into the pods of
//! those is looked further, for a bounded time: the number of their connections may be missing, never that they hang.

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
    netns::{Netns, connecting},
};
use sidetrack_live::Queue;

use crate::api::PodStatus;

/// How long a look counts as what is so now.
const LOOK_TTL: Duration = Duration::from_secs(10);
/// How long counting the connections of all pods whose sidecar hangs may take.
const COUNT_TIMEOUT: Duration = Duration::from_millis(200);

/// What waits, by the cookie of the pod's network namespace.
pub type QueueByPod = HashMap<u64, Queue>;

/// The last look.
#[derive(Debug)]
pub struct Sidecars {
    queues: Option<Arc<Queues>>,
    last: RwLock<Option<(Instant, Arc<QueueByPod>)>>,
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

    /// What waited a moment ago; `None` if nobody has looked.
    #[must_use]
    pub fn last(&self) -> Option<Arc<QueueByPod>> {
        let last = self.last.read();
        let (at, queues) = last.as_ref()?;
        (at.elapsed() < LOOK_TTL).then(|| Arc::clone(queues))
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
        let mut last = self.last.write();
        *last = Some((Instant::now(), Arc::new(by_pod)));
        Ok(())
    }
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
    let opened = Netns::open(netns.path.as_ref()).ok();
    let opened = opened.filter(|opened| opened.cookie() == netns.cookie);
    let port = pod.policy.as_ref().map(|policy| policy.outbound_port);
    let sockets = opened
        .zip(port)
        .and_then(|(opened, port)| connecting::count(&opened, port, until).ok());
    sockets.unwrap_or_default()
}

#[cfg(test)]
mod tests;
