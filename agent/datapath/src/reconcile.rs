//! The reconciler of this node: the decisions of [`sidetrack_reconcile`] on the real kernel, repairs,
//! and what becomes of older layouts.

mod handshakes;
mod inbound_links;
mod older_layouts;
mod outside;
mod repair;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Result;
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::{PodRef, mesh::Mesh};
use sidetrack_reconcile::{
    Core, Listing, PodEvent, Record,
    cni::{Answer, Sandbox},
};
use tokio::sync::mpsc;

pub use self::outside::Look;
use self::{handshakes::Lingering, inbound_links::Detached, outside::Outside, repair::Repairs};
use crate::{
    kernel::Datapath, netns::processes::Found, node::KernelNode, rows::policy_rows::PolicyRepair,
};

/// How often everything in the kernel is compared with what was written.
const REPAIR_PERIOD: Duration = Duration::from_secs(2);

/// How often the pods' links for inbound connections are looked at.
pub const LINK_INTERVAL: Duration = Duration::from_millis(200);

/// The agent's only writer of maps and links.
#[derive(Debug)]
pub struct Reconciler {
    core: Core<KernelNode>,
    repairs: Repairs,
    policy_repair: PolicyRepair,
    lingering: Lingering,
    outside: Outside,
    detached: Detached,
    next_repair: Option<Instant>,
    /// When older layouts are checked again.
    next_layout_check: Option<Instant>,
    /// Reused by comparisons of rows.
    buffer: Vec<u8>,
}

impl Reconciler {
    /// Takes over what an earlier agent left. Cookies of namespaces that change are sent on `changed`;
    /// give them to [`Reconciler::namespaces_changed`].
    ///
    /// # Errors
    /// If the kernel's maps cannot be read.
    pub async fn new(
        datapath: Datapath,
        mesh: Mesh,
        changed: mpsc::UnboundedSender<u64>,
    ) -> Result<Self> {
        let mut node = KernelNode::new(datapath, changed);
        node.follow_mesh(&mesh);
        Ok(Self {
            core: Core::new(node, mesh).await?,
            repairs: Repairs::default(),
            policy_repair: PolicyRepair::default(),
            lingering: Lingering::default(),
            outside: Outside::default(),
            detached: Detached::default(),
            next_repair: None,
            next_layout_check: None,
            buffer: Vec::new(),
        })
    }

    /// The pods, by name.
    pub fn pods(&self) -> impl Iterator<Item = (&PodRef, &Record<KernelNode>)> {
        self.core.pods()
    }

    /// Takes the events since the last call.
    pub fn drain_events(&mut self) -> Vec<PodEvent> {
        self.core.drain_events()
    }

    /// Takes how long the pods that were enrolled since the last call had waited for it.
    pub fn drain_enrollment_waits(&mut self) -> Vec<Duration> {
        self.core.drain_enrollment_waits()
    }

    /// Whether anything that is published may have changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        self.core.take_changed()
    }

    /// Sets other mesh-wide settings. They take effect with the next [`Reconciler::apply`].
    pub fn set_mesh(&mut self, mesh: Mesh) {
        self.core.node.follow_mesh(&mesh);
        self.core.set_mesh(mesh);
    }

    /// The source cannot be read. Everything stays as it is.
    pub fn cannot_list(&mut self, problem: String) {
        self.core.cannot_list(problem);
    }

    /// Makes everything agree with a listing.
    pub async fn apply(&mut self, listing: &Listing) {
        self.core.apply(listing).await;
    }

    /// Tries again what could not be done, and removes what is out of use. To be called twice a second.
    pub async fn retry(&mut self) {
        self.core.retry().await;
    }

    /// Whether [`Reconciler::go_on`] has something to do.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.core.has_more()
    }

    /// Goes on with what the last turn has left, so that no turn takes long.
    pub async fn go_on(&mut self) {
        self.core.go_on().await;
    }

    /// UIDs of the pods that wait for their first process.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.core.awaited()
    }

    /// Enrolls a pod that waits for its first process, if that is in its cgroup.
    pub async fn enroll_awaited(&mut self, uid: &str, cgroup: PathBuf) {
        let known = HashMap::from([(uid.to_owned(), cgroup)]);
        let node = &self.core.node;
        let processes = node.processes_in(BTreeSet::new(), Some(known));
        self.core.enroll_awaited(uid, processes).await;
    }

    /// Follows addresses and routes of namespaces that changed.
    pub async fn namespaces_changed(&mut self, cookies: BTreeSet<u64>) {
        let cookies = cookies.into_iter().map(NetnsCookie::new).collect();
        self.core.namespaces_changed(&cookies).await;
    }

    /// Enrolls a pod in a namespace that was just made for it.
    pub async fn attach(&mut self, sandbox: &Sandbox, found: &Found) -> Answer {
        let found = sidetrack_reconcile::Found {
            path: found.path.clone(),
            inode: found.inode.map(NetnsInode::new),
        };
        self.core.attach(sandbox, &found).await
    }

    /// Whether a pod is as [`Reconciler::attach`] left it.
    pub fn check(&self, sandbox: &Sandbox) -> Answer {
        self.core.check(sandbox)
    }

    /// A sandbox is being removed.
    pub async fn forget_sandbox(&mut self, container: &str, inode: Option<u64>) {
        let inode = inode.map(NetnsInode::new);
        self.core.forget_sandbox(container, inode).await;
    }

    /// All sandboxes but these are gone.
    pub async fn keep_sandboxes(&mut self, containers: &[String]) {
        self.core.keep_sandboxes(containers).await;
    }

    /// What is wrong and belongs to no pod.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let repairs = self.repairs.problems.clone();
        let detached = self.detached.problems();
        let outside = self.outside_problems();
        [self.core.problems.clone(), repairs, detached, outside].concat()
    }

    /// What people should know although nothing is wrong, as sentences.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        [&self.repairs.notes, self.outside_notes()].concat()
    }

    /// Repairs so far, by the name of their kind.
    #[must_use]
    pub fn repair_counts(&self) -> BTreeMap<&'static str, u64> {
        self.repairs.counts()
    }

    /// The cgroup the hooks are attached to.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        self.core.node.datapath.cgroup()
    }
}
