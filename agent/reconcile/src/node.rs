//! The port to the node: everything that [`Core`](crate::Core) reads or writes outside of itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{
    PodRef, Policy,
    compiled::CompiledPolicy,
    ids::{IdMaps, UnknownId},
    manifest::NetnsRef,
};

use crate::{
    plan::Step,
    policies::{EarlierPolicy, Excess},
    repairs::{Findings, Repair},
};

/// Where a network namespace was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// A path to it, valid as long as the process in it lives.
    pub path: PathBuf,
    /// Its inode, where it is known: the path may lead elsewhere by the time it is opened.
    pub inode: Option<NetnsInode>,
    /// Why another namespace may be the pod's.
    pub doubt: Option<String>,
}

/// A pod whose namespace is looked for among its processes.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// Whether it has a user namespace of its own (`hostUsers: false`).
    pub own_users: bool,
    /// The namespace that is its own, as far as that is certain.
    pub known: Option<NetnsInode>,
}

/// Why a pod without a process is not enrolled.
pub const NO_PROCESS: &str =
    "no process of it runs on this node yet; the pod is enrolled as soon as one does";

/// Why something could not be done on the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The namespace, or the pod's first process, is not there yet. It is tried again.
    #[error("{0}")]
    NotYet(String),
    /// Nothing can be learned of it now, so nothing changes. It is tried again.
    #[error("{0}")]
    Unknown(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for NodeError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Why a pod could not be enrolled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnrollError {
    /// The node could not do it.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// Another pod is in the namespace.
    #[error("network namespace {path} already belongs to pod {other}; every pod needs its own")]
    NamespaceInUse {
        /// A path to the namespace.
        path: PathBuf,
        /// The pod that has it.
        other: PodRef,
    },
    /// The policy has too many entries.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// The policy names a user or group that the pod does not have.
    #[error(transparent)]
    UnknownId(#[from] UnknownId),
}

impl EnrollError {
    /// Whether the pod only has to wait.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::Node(NodeError::NotYet(_) | NodeError::Unknown(_))
        )
    }
}

/// An open network namespace, ready to be written: nothing of it has been written yet.
#[derive(Debug)]
pub struct Opened<L> {
    /// Its cookie.
    pub cookie: NetnsCookie,
    /// Its inode.
    pub inode: NetnsInode,
    /// Numbering of its users and groups.
    pub ids: IdMaps,
    /// The connection into it.
    pub link: L,
}

/// Rows of an earlier agent in the kernel.
#[derive(Debug)]
pub struct EarlierRows<R> {
    /// The namespace.
    pub cookie: NetnsCookie,
    /// The pod they are of; `None` for remains without a pod row.
    pub pod: Option<PodRef>,
    /// The UID of that pod, where it is known.
    pub uid: Option<String>,
    /// Inode of the namespace; 0 for remains.
    pub inode: NetnsInode,
    /// The rows.
    pub rows: R,
}

impl<R> EarlierRows<R> {
    /// Whether they are of a pod. An earlier one may have had its name, which the UIDs say if both are known.
    #[must_use]
    pub fn is_of(&self, name: &PodRef, uid: Option<&str>) -> bool {
        let uids = self.uid.as_deref().zip(uid);
        self.pod.as_ref() == Some(name) && uids.is_none_or(|(own, other)| own == other)
    }
}

/// An enrolled pod.
#[derive(Debug)]
pub struct Enrollment<N: Node> {
    /// How its namespace is found.
    pub netns: NetnsRef,
    /// The path its namespace was found by.
    pub path: PathBuf,
    /// Inode of the namespace.
    pub inode: NetnsInode,
    /// Cookie of the namespace, the key of its rows.
    pub cookie: NetnsCookie,
    /// The active policy.
    pub policy: Arc<Policy>,
    /// The same in the node's numbering of users, as it was written.
    pub compiled: Arc<CompiledPolicy>,
    /// Its id in the kernel.
    pub policy_id: PolicyId,
    /// Numbering of the pod's users and groups.
    pub ids: IdMaps,
    /// Why another namespace may be the pod's.
    pub doubt: Option<String>,
    /// Whether the kernel's copy of addresses and routes may be out of date.
    pub stale: bool,
    /// When they may be read again: reading took long, or failed.
    pub refresh_at: Option<Instant>,
    /// Its rows in the kernel.
    pub rows: N::Rows,
    /// The connection into its namespace.
    pub link: N::Link,
}

impl<N: Node> Enrollment<N> {
    /// What people should know of the pod although nothing is wrong.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let ids = self.ids.to_string();
        let users = (!ids.is_empty())
            .then(|| format!("it numbers its users on its own: on the node, {ids}"));
        let network = self.link.notes();
        let own = users.into_iter().chain(network);
        own.chain(self.policy.notes()).collect()
    }
}

/// Ports and families of the listeners in the kernel's map, by pod.
pub type KnownListeners = BTreeMap<NetnsCookie, BTreeSet<(u16, u16)>>;

/// The node's processes.
pub trait Processes {
    /// No process at all: for namespaces that were made a moment ago.
    fn none() -> Self;
    /// Whether any process is in a namespace, or may be: processes that cannot be seen count.
    fn any_in(&self, inode: NetnsInode) -> bool;
    /// A path to a namespace, by one of its processes.
    fn path_of(&self, inode: NetnsInode) -> Option<PathBuf>;
    /// The namespace of a pod's processes.
    ///
    /// # Errors
    /// Why there is none yet.
    fn netns_of_pod(&self, pod: Sought<'_>) -> Result<Found, NodeError>;
}

/// A connection into a pod's namespace, which reports changes of its addresses and routes.
pub trait Link: fmt::Debug {
    /// The namespace is found by another path from now on.
    fn follow_path(&mut self, path: &Path);
    /// What people should know about the pod's network.
    fn notes(&self) -> Vec<String>;
    /// Whether changes are still reported.
    fn is_alive(&self) -> bool;
}

/// The rows of policies in the kernel.
pub trait PolicyRows {
    /// Writes the lists of a policy.
    ///
    /// # Errors
    /// If a map is full.
    fn write_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()>;
    /// Writes the row of a policy whose lists are there.
    ///
    /// # Errors
    /// If the map is full.
    fn write_row(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()>;
    /// Removes the row of a policy.
    ///
    /// # Errors
    /// If the map cannot be written.
    fn remove_row(&mut self, id: PolicyId) -> io::Result<()>;
    /// Removes the lists of a policy without a row.
    ///
    /// # Errors
    /// If a map cannot be written.
    fn remove_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> io::Result<()>;
    /// The highest id that any row names. Lists count as well: an agent that was killed while it wrote or removed a policy
    /// leaves lists without their row, and a policy under that id would have them among its own. So do counters of policies
    /// that are gone.
    ///
    /// # Errors
    /// If a map cannot be read.
    fn highest(&self) -> io::Result<Option<PolicyId>>;
    /// Every policy that has its row. The row is written last and removed first, so that its lists are complete.
    ///
    /// # Errors
    /// If a map cannot be read.
    fn complete(&self) -> io::Result<Vec<EarlierPolicy>>;
    /// Removes the rows of all policies but these, and but those that pod rows name.
    ///
    /// # Errors
    /// If a map cannot be read or written.
    fn sweep(&mut self, keep: &BTreeSet<PolicyId>) -> io::Result<()>;
}

/// What is looked at.
#[derive(Debug)]
pub enum Look<'a, N: Node> {
    /// As [`Scope::InboundLinks`](crate::repairs::Scope::InboundLinks).
    InboundLinks,
    /// Everything that was written or attached.
    All {
        /// The policies.
        policies: Vec<(PolicyId, &'a CompiledPolicy)>,
        /// The enrolled pods.
        pods: Vec<&'a Enrollment<N>>,
        /// The namespaces of earlier agents' pods.
        earlier: Vec<(NetnsCookie, NetnsInode)>,
    },
}

/// The node as the reconciler sees it.
#[expect(async_fn_in_trait, reason = "the reconciler runs on one thread")]
pub trait Node: Sized {
    /// A pod's rows in the kernel.
    type Rows: Clone + fmt::Debug;
    /// A connection into a pod's namespace.
    type Link: Link;
    /// The rows of policies.
    type Policies: PolicyRows;
    /// The node's processes.
    type Processes: Processes + fmt::Debug + 'static;

    /// The time.
    fn now(&self) -> Instant;
    /// The node's processes. Only these namespaces are asked about.
    fn processes(&self, inodes: BTreeSet<NetnsInode>) -> Self::Processes;
    /// Inode of the namespace that a path leads to now.
    fn inode_at(&self, path: &Path) -> Option<NetnsInode>;
    /// Inode of a namespace that was found, after a check that it is one that may be enrolled.
    fn check(&self, found: &Found) -> Result<NetnsInode, NodeError>;
    /// Opens a namespace.
    async fn open(&mut self, found: &Found) -> Result<Opened<Self::Link>, NodeError>;
    /// The servers of a pod's resolv.conf; `None` if that takes too long. `process` is the path to the namespace by one
    /// of the pod's processes, where that is another one.
    async fn dns_servers(
        &mut self,
        pod: &PodRef,
        cookie: NetnsCookie,
        netns: (&Path, NetnsInode),
        process: Option<&Path>,
    ) -> Option<Vec<IpAddr>>;
    /// Rows of a pod before anything is written; `present` are those that are in the kernel already.
    fn rows(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        opened: &Opened<Self::Link>,
        present: Option<Self::Rows>,
    ) -> Result<Self::Rows, NodeError>;
    /// Does one step for a pod. A step that removes does not need the link.
    async fn step(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut Self::Rows,
        link: Option<&mut Self::Link>,
        step: &Step<'_, Self::Processes>,
    ) -> Result<(), NodeError>;
    /// The rows of policies.
    fn policies(&mut self) -> &mut Self::Policies;

    /// All rows of earlier agents.
    fn earlier_rows(&mut self) -> Result<Vec<EarlierRows<Self::Rows>>, NodeError>;
    /// Gives a pod of an earlier agent this build's program; `false` when its link is attached nowhere.
    fn refresh_program(&mut self, cookie: NetnsCookie) -> Result<bool, NodeError>;
    /// The listeners in the kernel's map.
    fn listeners(&self) -> KnownListeners;

    /// Looks at the kernel.
    fn look(&mut self, at: Look<'_, Self>) -> Findings;
    /// Carries out a repair, of an enrolled pod if there is one. Answers whether there was something to repair.
    fn repair(
        &mut self,
        repair: &Repair,
        pod: Option<&Enrollment<Self>>,
    ) -> Result<bool, NodeError>;
}
