//! The node the reconciler works on: the real kernel behind the trait [`Node`].

mod destinations;
mod forwarding;
mod link;
pub(crate) mod steps;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{
    PodRef, Policy,
    compiled::CompiledPolicy,
    mesh::{Mesh, VirtualInterfaces},
};
use sidetrack_reconcile::{
    Found, Node, NodeError, Step,
    node::{KnownListeners, LeftRows, Opened},
    policies::LeftPolicy,
};
use tokio::sync::mpsc;

pub use self::{destinations::Departed, link::PodLink};
use crate::{
    kernel::Datapath,
    netns::{
        self, Netns, NetnsError,
        listeners::Adopter,
        processes::{self, Processes},
        transparent::Transparency,
        userns,
    },
    rows::{PodRows, left_rows, policy_rows},
};

/// The kernel of this node, as far as pods are concerned.
#[derive(Debug)]
pub struct KernelNode {
    /// The programs and maps.
    pub datapath: Datapath,
    /// Pods that have left, as far as their connections need something.
    pub departed: Departed,
    /// Searches for listeners that are open already.
    adopter: Adopter,
    /// Makes listeners transparent.
    transparency: Transparency,
    /// Where links report changes.
    changed: mpsc::UnboundedSender<u64>,
    /// Whether the rules apply to packets that only pass through a pod.
    captures_forwarded: bool,
}

impl KernelNode {
    /// Cookies of namespaces that change are sent on `changed`.
    #[must_use]
    pub fn new(datapath: Datapath, changed: mpsc::UnboundedSender<u64>) -> Self {
        let (adoption, tasks) = (&datapath.adoption, &datapath.tasks);
        let adopter = Adopter::new(Arc::clone(adoption), Arc::clone(tasks));
        let transparency = Transparency::new(Arc::clone(adoption), Arc::clone(tasks));
        Self {
            datapath,
            departed: Departed::default(),
            adopter,
            transparency,
            changed,
            captures_forwarded: false,
        }
    }

    /// Does with packets that only pass through a pod what the mesh's settings say, from the pod's next turn on.
    pub fn follow_mesh(&mut self, mesh: &Mesh) {
        self.captures_forwarded = mesh.virtual_interfaces == VirtualInterfaces::Full;
    }

    /// Has the listeners of a pod that captures packets for other addresses made transparent, if they are not.
    pub(crate) fn make_transparent(&self, rows: &PodRows, link: &PodLink, policy: &Policy) {
        if rows.forwards() {
            let netns = link.shared_netns();
            self.transparency.start(netns, policy.listener_ports());
        }
    }

    /// The node's processes, as far as they are in these namespaces; and the cgroups of pods where they are known.
    #[must_use]
    pub fn processes_in(
        &self,
        inodes: BTreeSet<u64>,
        cgroups: Option<HashMap<String, PathBuf>>,
    ) -> Processes {
        Processes::of(processes::Node {
            tasks: Arc::clone(&self.datapath.tasks),
            inodes,
            pods: self.datapath.cgroup().to_owned(),
            cgroups: cgroups.map_or_else(OnceCell::new, OnceCell::from),
            anywhere: OnceCell::new(),
            counted: OnceCell::new(),
        })
    }
}

/// An error with its causes, for the reconciler.
fn failed(problem: anyhow::Error) -> NodeError {
    match problem.downcast::<NetnsError>() {
        Ok(problem) => problem.into(),
        Err(problem) => NodeError::Failed(format!("{problem:#}")),
    }
}

impl From<NetnsError> for NodeError {
    fn from(problem: NetnsError) -> Self {
        let text = problem.to_string();
        match problem {
            NetnsError::Missing(_) | NetnsError::NoProcess => Self::NotYet(text),
            _ => Self::Failed(text),
        }
    }
}

impl sidetrack_reconcile::Processes for Processes {
    fn none() -> Self {
        Self::default()
    }

    fn any_in(&self, inode: NetnsInode) -> bool {
        self.any_in(inode.get())
    }

    fn netns_of_pod(&self, uid: &str, known: Option<NetnsInode>) -> Option<Found> {
        self.netns_of_pod(uid, known.map(NetnsInode::get))
    }
}

impl Node for KernelNode {
    type Rows = PodRows;
    type Link = PodLink;
    type Processes = Processes;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn processes(&self, inodes: BTreeSet<NetnsInode>) -> Processes {
        self.processes_in(inodes.into_iter().map(NetnsInode::get).collect(), None)
    }

    fn inode_at(&self, path: &Path) -> Option<NetnsInode> {
        netns::inode_at(path).map(NetnsInode::new)
    }

    fn check(&self, found: &Found) -> Result<NetnsInode, NodeError> {
        Ok(NetnsInode::new(Netns::open_found(found)?.inode()))
    }

    async fn open(&mut self, found: &Found) -> Result<Opened<PodLink>, NodeError> {
        let netns = Netns::open_found(found)?;
        let ids = userns::id_maps(&netns).map_err(failed)?;
        Ok(Opened {
            cookie: NetnsCookie::new(netns.cookie()),
            inode: NetnsInode::new(netns.inode()),
            ids,
            link: PodLink::new(netns, self.changed.clone()).map_err(failed)?,
        })
    }

    fn rows(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        opened: &Opened<PodLink>,
        left: Option<PodRows>,
    ) -> Result<PodRows, NodeError> {
        PodRows::new(pod, uid, (opened.cookie, opened.inode), left).map_err(failed)
    }

    async fn step(
        &mut self,
        cookie: NetnsCookie,
        rows: &mut PodRows,
        link: Option<&mut PodLink>,
        step: &Step<'_, Processes>,
    ) -> Result<(), NodeError> {
        steps::run(self, cookie, rows, link, step)
            .await
            .map_err(failed)
    }

    fn follow_path(&mut self, link: &mut PodLink, path: &Path) {
        link.follow_path(path);
    }

    fn notes(link: &PodLink) -> Vec<String> {
        link.notes()
    }

    fn is_alive(&self, link: &PodLink) -> bool {
        link.is_alive()
    }

    fn write_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> Result<(), NodeError> {
        policy_rows::write_lists(id, policy, &self.datapath.maps).map_err(not_written)
    }

    fn write_policy(&mut self, id: PolicyId, policy: &CompiledPolicy) -> Result<(), NodeError> {
        let policies = &self.datapath.maps.policies;
        policies
            .insert(&id.get(), &policy.row())
            .map_err(not_written)
    }

    fn remove_policy(&mut self, id: PolicyId) -> Result<(), NodeError> {
        let removed = self.datapath.maps.policies.remove(&id.get());
        removed.map(drop).map_err(|error| failed(error.into()))
    }

    fn remove_lists(&mut self, id: PolicyId, policy: &CompiledPolicy) -> Result<(), NodeError> {
        policy_rows::remove_lists(id, policy, &self.datapath.maps)
            .map_err(|error| failed(error.into()))
    }

    fn highest_policy(&self) -> Result<Option<PolicyId>, NodeError> {
        policy_rows::highest(&self.datapath.maps).map_err(|error| failed(error.into()))
    }

    fn left_policies(&self) -> Result<Vec<LeftPolicy>, NodeError> {
        policy_rows::left(&self.datapath.maps).map_err(|error| failed(error.into()))
    }

    fn sweep_policies(&mut self, keep: &BTreeSet<PolicyId>) -> Result<(), NodeError> {
        policy_rows::sweep(keep, &self.datapath.maps).map_err(|error| failed(error.into()))
    }

    fn left_rows(&self) -> Result<Vec<LeftRows<PodRows>>, NodeError> {
        left_rows(&self.datapath).map_err(failed)
    }

    fn refresh_program(&mut self, cookie: NetnsCookie) -> Result<bool, NodeError> {
        self.datapath.refresh_pod(cookie).map_err(failed)
    }

    fn listeners(&self) -> KnownListeners {
        let mut known: KnownListeners = BTreeMap::new();
        for key in self.datapath.maps.listeners.keys().into_iter().flatten() {
            let of_pod = known.entry(NetnsCookie::new(key.netns)).or_default();
            of_pod.insert((key.family, key.port));
        }
        known
    }
}

fn not_written(error: std::io::Error) -> NodeError {
    failed(
        anyhow::Error::new(error)
            .context("write the policy; if a map is full, shorten the pods' port and CIDR lists"),
    )
}
