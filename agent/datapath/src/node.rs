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

use sidetrack_common::ids::{NetnsCookie, NetnsInode, PolicyId};
use sidetrack_policy::{PodRef, compiled::CompiledPolicy};
use sidetrack_reconcile::{
    Enrollment, Found, Node, NodeError, Step,
    node::{EarlierRows, KnownListeners, Opened},
    policies::EarlierPolicy,
    repairs::{Findings, Repair},
};

pub use self::{destinations::Departed, kernel_node::KernelNode, link::PodLink};
use crate::{
    netns::{self, Netns, NetnsError, processes::Processes, userns},
    rows::{PodRows, earlier_rows, policy_rows},
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

    fn cookie_at(&self, path: &Path) -> Option<NetnsCookie> {
        let netns = Netns::open(path).ok()?;
        Some(NetnsCookie::new(netns.cookie()))
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

    fn earlier_policies(&self) -> Result<Vec<EarlierPolicy>, NodeError> {
        policy_rows::earlier(&self.datapath.maps).map_err(|error| failed(error.into()))
    }

    fn sweep_policies(&mut self, keep: &BTreeSet<PolicyId>) -> Result<(), NodeError> {
        policy_rows::sweep(keep, &self.datapath.maps).map_err(|error| failed(error.into()))
    }

    fn earlier_rows(&mut self) -> Result<Vec<EarlierRows<PodRows>>, NodeError> {
        let earlier = earlier_rows(&self.datapath).map_err(failed)?;
        for it in earlier.iter().filter(|it| it.pod.is_some()) {
            it.rows.note_routes(&mut self.route_quota);
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

    fn look(
        &mut self,
        policies: Vec<(PolicyId, &CompiledPolicy)>,
        pods: &[&Enrollment<Self>],
    ) -> Findings {
        repairs::look(self, policies, pods)
    }

    fn look_at_inbound(&self) -> Findings {
        repairs::look_at_inbound(&self.datapath)
    }

    fn has_inbound_link(&self, cookie: NetnsCookie, inode: NetnsInode) -> bool {
        self.datapath.is_attached(cookie, inode)
    }

    fn repair(
        &mut self,
        repair: &Repair,
        pod: Option<&Enrollment<Self>>,
    ) -> Result<bool, NodeError> {
        repairs::carry_out(self, repair, pod).map_err(failed)
    }
}

fn not_written(error: std::io::Error) -> NodeError {
    failed(
        anyhow::Error::new(error)
            .context("write the policy; if a map is full, shorten the pods' port and CIDR lists"),
    )
}
