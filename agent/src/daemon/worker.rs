//! What the reconciler's thread does: it alone writes the kernel's maps and links.
//!
//! Updates come from the main thread's [`Inbox`], CNI requests from their queue, changes of network
//! namespaces from netlink watches on this thread's runtime. Each turn handles one event, answers
//! pending CNI requests, and publishes the state.

use std::{
    collections::{BTreeSet, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval},
};
use tracing::{debug, error};

use super::{
    fast_poll::FastPoll,
    inbox::{Inbox, Update},
    ztunnel,
};
use crate::observe::{snapshot::Snapshot, status::Status};
use crate::sources::{cluster::Reporter, cni_requests::CniQueue, pod_cgroups::PodCgroups};
use sidetrack_base::runtime::sleep_until;
use sidetrack_common::ids::NetnsCookie;
use sidetrack_datapath::{
    kernel::Datapath,
    reconcile::{LINK_INTERVAL, Reconciler},
};
use sidetrack_live::history::Kind;
use sidetrack_policy::mesh::Mesh;

/// How often failed work is tried again, and vanished namespaces are noticed.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// When a watch of the pods' cgroups is tried again.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// What the thread works with.
pub(super) struct Parts {
    pub(super) datapath: Datapath,
    pub(super) mesh: Mesh,
    pub(super) cni_queue: CniQueue,
    pub(super) status: Arc<Status>,
    pub(super) reporter: Option<Reporter>,
    /// Where pods of ztunnel go, if the agent serves it.
    pub(super) ztunnel: Option<ztunnel::Publisher>,
    /// Whether pods are found by their cgroups.
    pub(super) follow_cgroups: bool,
}

/// Reconciles until an error; `ready` becomes true when the first listing is applied.
pub(super) async fn work(
    parts: Parts,
    inbox: Arc<Inbox>,
    ready: watch::Sender<bool>,
) -> Result<()> {
    let (changed_sender, changed) = mpsc::unbounded_channel();
    let reconciler = Reconciler::new(parts.datapath, parts.mesh, changed_sender).await?;
    let earlier = reconciler.core.pods_of_earlier_agents().len();
    if earlier > 0 {
        let text = format!("{earlier} pods of an earlier agent stay intercepted");
        parts.status.history().add(Kind::TookOver, None, &text);
    }
    let mut worker = Worker {
        reconciler,
        inbox,
        changed,
        cni_queue: parts.cni_queue,
        status: parts.status,
        reporter: parts.reporter,
        ztunnel: parts.ztunnel,
        follow_cgroups: parts.follow_cgroups,
        pod_cgroups: None,
        cgroup: PathBuf::new(),
        cgroup_tried: Instant::now(),
        fast_poll: FastPoll::default(),
        repairs: every(LINK_INTERVAL),
        ready,
        is_ready: false,
    };
    worker.follow_cgroup();
    if let Some(update) = worker.inbox.take() {
        worker.apply(update).await;
    }
    worker.publish();
    let mut retry = every(RETRY_INTERVAL);
    loop {
        worker.turn(&mut retry).await;
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn appeared(cgroups: &mut Option<PodCgroups>) -> String {
    match cgroups {
        Some(cgroups) => cgroups.appeared().await,
        None => std::future::pending().await,
    }
}

/// The reconciler, and the sources of its events.
struct Worker {
    reconciler: Reconciler,
    inbox: Arc<Inbox>,
    /// Cookies of network namespaces whose routes, addresses or listeners changed.
    changed: mpsc::UnboundedReceiver<u64>,
    cni_queue: CniQueue,
    status: Arc<Status>,
    reporter: Option<Reporter>,
    ztunnel: Option<ztunnel::Publisher>,
    follow_cgroups: bool,
    pod_cgroups: Option<PodCgroups>,
    /// The cgroup in which these are.
    cgroup: PathBuf,
    /// When they were last tried to be watched.
    cgroup_tried: Instant,
    fast_poll: FastPoll,
    repairs: Interval,
    ready: watch::Sender<bool>,
    is_ready: bool,
}

impl Worker {
    /// One turn: waits for an event and handles it, answers pending CNI requests, publishes the state.
    async fn turn(&mut self, retry: &mut Interval) {
        let has_more = self.reconciler.core.has_more();
        tokio::select! {
            update = self.inbox.next() => self.apply(update).await,
            Some(request) = self.cni_queue.next() => {
                let ready = self.is_ready;
                self.cni_queue
                    .accept(request, &mut self.reconciler, ready)
                    .await;
            }
            uid = appeared(&mut self.pod_cgroups) => {
                debug!(uid, "a cgroup was made");
                self.fast_poll.start(uid, Instant::now());
            }
            () = sleep_until(self.fast_poll.next()) => self.poll_fast().await,
            Some(cookie) = self.changed.recv() => {
                let mut cookies = BTreeSet::from([NetnsCookie::new(cookie)]);
                while let Ok(cookie) = self.changed.try_recv() {
                    cookies.insert(NetnsCookie::new(cookie));
                }
                self.reconciler.core.namespaces_changed(&cookies).await;
            }
            look = self.reconciler.look_outside() => self.reconciler.note_outside(look),
            _ = self.repairs.tick() => self.repair().await,
            _ = retry.tick() => {
                self.reconciler.core.retry().await;
                self.reconciler.follow_dns_servers().await;
            }
            // Something remains to do of the last turn. One of those that are ready is chosen at random.
            () = std::future::ready(()), if has_more => self.reconciler.core.proceed().await,
        }
        self.follow_cgroup();
        self.cni_queue.answer_pending(&mut self.reconciler).await;
        self.publish();
        self.cni_queue.send_answers();
    }

    /// Applies what the main thread has sent.
    async fn apply(&mut self, update: Update) {
        let Update {
            mesh,
            listing,
            problem,
        } = update;
        if let Some(mesh) = mesh {
            self.reconciler.set_mesh(mesh);
        }
        if let Some(listing) = listing {
            self.reconciler.core.apply(&listing).await;
            self.is_ready = true;
        }
        if let Some(problem) = problem {
            self.reconciler.core.cannot_list(problem);
        }
    }

    /// Repairs what others have changed. If the pods' cgroup was replaced, follows the new one.
    async fn repair(&mut self) {
        if self.reconciler.repair().await {
            self.cgroup = PathBuf::new();
        }
    }

    /// Follows the cgroup that the hooks are on, if it is another one or was replaced.
    fn follow_cgroup(&mut self) {
        let now = self.reconciler.core.node.datapath.cgroup();
        let is_same = self.cgroup.as_os_str() == now.as_os_str();
        let has_gaps = self.pod_cgroups.as_ref().is_none_or(PodCgroups::has_gaps);
        let is_due = has_gaps && self.cgroup_tried.elapsed() >= WATCH_INTERVAL;
        if !self.follow_cgroups || is_same && !is_due {
            return;
        }
        let tried = PodCgroups::new(now);
        if let Err(error) = &tried
            && (!is_same || self.pod_cgroups.is_some())
        {
            error!(
                "new pods are found up to 5 s later until their cgroups can be watched: {error:#}"
            );
        }
        self.pod_cgroups = tried.ok();
        self.cgroup = now.to_owned();
        self.cgroup_tried = Instant::now();
    }

    /// Looks for pods whose cgroups have just been made.
    async fn poll_fast(&mut self) {
        let Some(cgroups) = &self.pod_cgroups else {
            // The usual retries look.
            self.fast_poll = FastPoll::default();
            return;
        };
        let awaited: HashSet<&str> = self.reconciler.core.awaited().collect();
        let due = self
            .fast_poll
            .due(Instant::now(), |uid| awaited.contains(uid));
        let here: Vec<(String, PathBuf)> = due
            .into_iter()
            .filter_map(|uid| {
                let cgroup = cgroups.of(&uid)?.to_owned();
                Some((uid, cgroup))
            })
            .collect();
        for (uid, cgroup) in here {
            self.reconciler.enroll_awaited(&uid, cgroup).await;
        }
    }

    /// Publishes the state after a turn.
    fn publish(&mut self) {
        self.status.turn_completed();
        for event in self.reconciler.core.drain_events() {
            self.status.history().add_event(&event);
            if let Some(reporter) = &self.reporter {
                reporter.report(event);
            }
        }
        for (pod, repair) in self.reconciler.core.drain_repairs() {
            self.status.history().add_repair(pod.as_ref(), &repair);
        }
        for waited in self.reconciler.core.drain_enrollment_waits() {
            self.status.timings().enrolled(waited);
        }
        if self.reconciler.core.take_changed() {
            let snapshot = Snapshot::of(&self.reconciler, self.is_ready);
            self.status.publish(snapshot);
            if let Some(ztunnel) = self.ztunnel.as_ref().filter(|_| self.is_ready) {
                ztunnel.publish(&self.reconciler);
            }
        }
        // After the snapshot: a task that waits for readiness reads the snapshot next.
        self.ready
            .send_if_modified(|ready| std::mem::replace(ready, self.is_ready) != self.is_ready);
    }
}
