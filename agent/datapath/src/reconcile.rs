//! The reconciler of this node: the decisions of [`sidetrack_reconcile`] on the real kernel, repairs,
//! and what becomes of older layouts.

mod handshakes;
mod inbound_links;
mod older_layouts;
mod outside;
mod repair;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use sidetrack_policy::mesh::Mesh;
use sidetrack_reconcile::Core;
use tokio::sync::mpsc;

pub use self::outside::Look;
use self::{handshakes::Lingering, inbound_links::Detached, outside::Outside, repair::Repairs};
use crate::{kernel::Datapath, node::KernelNode, rows::policy_rows::PolicyRepair};

/// How often everything in the kernel is compared with what was written.
const REPAIR_INTERVAL: Duration = Duration::from_secs(2);

/// How often the pods' links for inbound connections are looked at.
pub const LINK_INTERVAL: Duration = Duration::from_millis(200);

/// The agent's only writer of maps and links.
#[derive(Debug)]
pub struct Reconciler {
    /// What is decided of each pod.
    pub core: Core<KernelNode>,
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
    /// Takes over what an earlier agent left. Cookies of namespaces that change are sent on `changed`; give them to
    /// [`Core::namespaces_changed`].
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

    /// Sets other mesh-wide settings. They take effect with the next [`Core::apply`].
    pub fn set_mesh(&mut self, mesh: Mesh) {
        self.core.node.follow_mesh(&mesh);
        self.core.set_mesh(mesh);
    }

    /// Enrolls a pod that waits for its first process, if that is in its cgroup.
    pub async fn enroll_awaited(&mut self, uid: &str, cgroup: PathBuf) {
        let known = HashMap::from([(uid.to_owned(), cgroup)]);
        let node = &self.core.node;
        let processes = node.processes_in(BTreeSet::new(), Some(known));
        self.core.enroll_awaited(uid, processes).await;
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
}
