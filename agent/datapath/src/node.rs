//! The node the reconciler works on: the real kernel behind the trait [`Node`].

mod destinations;
mod forwarding;
mod handshakes;
mod kernel_node;
mod link;
mod node_calls;
mod queries;
mod repairs;
mod resolvers;
mod stale_destinations;
mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    time::Instant,
};

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::{
    Enrollment, Found, Node, NodeError, Step,
    node::{EarlierRows, KnownListeners, Look, Opened},
    repairs::{Findings, Repair},
};

pub use self::{destinations::Departed, kernel_node::KernelNode, link::PodLink};
use crate::{
    kernel::maps::Maps,
    netns::{self, Netns, NetnsError, processes::Processes, userns},
    rows::{PodRows, earlier_rows},
};

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
            NetnsError::Silent { .. } => Self::Unknown(text),
            _ => Self::Failed(text),
        }
    }
}

impl Node for KernelNode {
    type Rows = PodRows;
    type Link = PodLink;
    type Policies = Maps;
    type Processes = Processes;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn processes(&self, inodes: BTreeSet<NetnsInode>) -> Processes {
        self.processes_in(inodes.into_iter().map(NetnsInode::get).collect(), None)
    }

    fn inode_at(&self, path: &Path) -> Option<NetnsInode> {
        netns::inode_of(path).ok().map(NetnsInode::new)
    }

    fn check(&self, found: &Found) -> Result<NetnsInode, NodeError> {
        Ok(NetnsInode::new(Netns::open_found(found)?.inode()))
    }

    async fn open(&mut self, found: &Found) -> Result<Opened<PodLink>, NodeError> {
        let netns = Netns::open_found(found)?;
        let ids = userns::id_maps(&netns).map_err(failed)?;
        let cookie = NetnsCookie::new(netns.cookie());
        let datapath = &self.datapath;
        let programs = |program| datapath.not_attached(cookie, program);
        Ok(Opened {
            cookie,
            inode: NetnsInode::new(netns.inode()),
            ids,
            link: PodLink::new(netns, self.changed.clone(), programs).map_err(failed)?,
        })
    }

    async fn dns_servers(
        &mut self,
        pod: &PodRef,
        cookie: NetnsCookie,
        netns: (&Path, NetnsInode),
        process: Option<&Path>,
    ) -> Option<Vec<IpAddr>> {
        let (netns, inode) = netns;
        let source = self.resolv_conf(netns, inode, process.map(Path::to_owned));
        self.resolvers.first(&pod.namespace, cookie, source).await
    }

    fn rows(
        &self,
        pod: &PodRef,
        uid: Option<&str>,
        opened: &Opened<PodLink>,
        present: Option<PodRows>,
    ) -> Result<PodRows, NodeError> {
        PodRows::new(pod, uid, (opened.cookie, opened.inode), present).map_err(failed)
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

    fn policies(&mut self) -> &mut Maps {
        &mut self.datapath.maps
    }

    fn earlier_rows(&mut self) -> Result<Vec<EarlierRows<PodRows>>, NodeError> {
        let earlier = earlier_rows(&self.datapath).map_err(failed)?;
        for it in earlier.iter().filter(|it| it.pod.is_some()) {
            it.rows.note_quotas(&mut self.row_quotas);
        }
        Ok(earlier)
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

    fn look(&mut self, at: Look<'_, Self>) -> Findings {
        repairs::look(self, at)
    }

    fn repair(
        &mut self,
        repair: &Repair,
        pod: Option<&Enrollment<Self>>,
    ) -> Result<bool, NodeError> {
        repairs::carry_out(self, repair, pod).map_err(failed)
    }
}
