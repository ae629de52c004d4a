//! Requests of the CNI plugin: pods that a container runtime is about to start. Their namespaces are
//! known before any process is in them.

use std::collections::BTreeMap;

use sidetrack_common::ids::NetnsInode;
use sidetrack_policy::{PodRef, manifest::NetnsRef};

use super::Core;
use crate::{
    cni::{CniAnswer, Sandbox},
    node::{Found, NO_PROCESS, Node, Processes as _},
    state::{Desired, PodState, Record, State},
};

/// The namespaces that the plugin named, by pod UID.
#[derive(Debug, Default)]
pub(super) struct Sandboxes {
    by_uid: BTreeMap<String, Known>,
}

/// A namespace that the plugin named.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) pod: PodRef,
    container: String,
    found: Found,
    /// Whether the agent has not seen any process in it yet.
    fresh: bool,
}

impl Known {
    /// Where it is, as long as it exists.
    fn found<N: Node>(&self, node: &N) -> Option<&Found> {
        (node.inode_at(&self.found.path) == self.found.inode).then_some(&self.found)
    }
}

impl Sandboxes {
    /// A pod's namespace as the plugin named it.
    pub(super) fn found<N: Node>(&self, uid: &str, node: &N) -> Option<Found> {
        self.by_uid.get(uid)?.found(node).cloned()
    }

    /// Whether the plugin has named a pod's namespace, and the pod has not been enrolled there yet.
    /// True once.
    pub(super) fn take_fresh(&mut self, netns: &NetnsRef) -> bool {
        let NetnsRef::PodUid(uid) = netns else {
            return false;
        };
        let known = self.by_uid.get_mut(uid);
        known.is_some_and(|known| std::mem::take(&mut known.fresh))
    }

    /// Inodes of namespaces that exist although nothing may run in them yet.
    pub(super) fn inodes<N: Node>(&self, node: &N) -> Vec<NetnsInode> {
        let found = self.by_uid.values().filter_map(|known| known.found(node));
        found.filter_map(|found| found.inode).collect()
    }

    /// Forgets all but these.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&Known) -> bool) {
        self.by_uid.retain(|_, known| is_kept(known));
    }

    /// Forgets all but these; answers the inodes of the forgotten ones.
    fn take_all_but(&mut self, is_kept: impl Fn(&Known) -> bool) -> Vec<NetnsInode> {
        let gone = self.by_uid.values().filter(|known| !is_kept(known));
        let inodes = gone.filter_map(|known| known.found.inode).collect();
        self.retain(is_kept);
        inodes
    }
}

impl<N: Node> Core<N> {
    /// Enrolls a pod in a namespace that was just made for it. [`CniAnswer::Later`] if it is not known
    /// yet whether it is to be enrolled.
    pub async fn attach(&mut self, sandbox: &Sandbox, found: &Found) -> CniAnswer {
        let name = sandbox.pod();
        let inode = NetnsInode::new(sandbox.inode);
        if is_static(&sandbox.uid) {
            return CniAnswer::Skipped("it is a static pod, which no injector sees".to_owned());
        }
        let known = self.pods.get(&name);
        let is_listed =
            |record: &&Record<N>| is_same(record, sandbox) && record.desired != Desired::Unlisted;
        let Some(record) = known.filter(is_listed) else {
            return self.answer_unknown(known.is_some());
        };
        if let Some(answer) = answer_without_goal(record) {
            return answer;
        }
        let netns = record.goal().map(|goal| goal.netns);
        let other_path = |netns: &NetnsRef| matches!(netns, NetnsRef::Path(path) if self.node.inode_at(path) != Some(inode));
        if netns.is_some_and(|netns| other_path(&netns)) {
            return CniAnswer::Refused(format!(
                "annotation sidetrack.dev/netns in {} names another network namespace than {}",
                record.origin,
                sandbox.netns.display()
            ));
        }
        let enrolled_at = record.enrollment().map(|it| it.inode);
        if enrolled_at == Some(inode) && self.is_settled(record) {
            return CniAnswer::Enrolled;
        }
        if enrolled_at.is_some_and(|at| at != inode) {
            self.depart(&name, "its sandbox was made anew").await;
        }
        let earlier_at = self.earlier_of(&name).map(|it| it.inode);
        self.sandboxes.by_uid.insert(
            sandbox.uid.clone(),
            Known {
                pod: name.clone(),
                container: sandbox.container.clone(),
                found: found.clone(),
                fresh: enrolled_at != Some(inode) && earlier_at != Some(inode),
            },
        );
        // Nothing runs in it yet, unless this is the second request.
        let first = enrolled_at.is_none() && earlier_at.is_none();
        let mut processes = first.then(N::Processes::none);
        self.converge(&name, &mut processes).await;
        self.changed = true;
        let Some(record) = self.pods.get(&name) else {
            return CniAnswer::Later("it is gone".to_owned());
        };
        match (record.enrollment(), &record.state) {
            (Some(enrollment), _) if enrollment.inode == inode => CniAnswer::Enrolled,
            (None, State::Waiting { reason, .. }) => {
                CniAnswer::Later(reason.clone().unwrap_or_default())
            }
            _ => record.refused(),
        }
    }

    /// The answer for a pod that is not listed; `other` says that another pod has its name.
    fn answer_unknown(&self, other: bool) -> CniAnswer {
        match self.running_counts {
            // A directory names all pods, as far as it can be read.
            Some(false) if !other && !self.listed_all => CniAnswer::Later(format!(
                "no manifest names it, but not all could be read: {}",
                self.problems.join("; ")
            )),
            Some(false) if !other => CniAnswer::Skipped("no manifest names it".to_owned()),
            Some(false) => CniAnswer::Refused(
                "the manifest of that name is another pod's: it has another UID".to_owned(),
            ),
            Some(true) => CniAnswer::Later(
                "this node's agent has not heard of it from the API server yet".to_owned(),
            ),
            None => CniAnswer::Later("this node's agent does not know its pods yet".to_owned()),
        }
    }

    /// Whether a pod is as [`Core::attach`] made it.
    pub fn check(&self, sandbox: &Sandbox) -> CniAnswer {
        let inode = NetnsInode::new(sandbox.inode);
        let record = self.pods.get(&sandbox.pod());
        let Some(record) = record.filter(|record| is_same(record, sandbox)) else {
            return if is_static(&sandbox.uid) || self.running_counts == Some(false) {
                CniAnswer::Skipped(String::new())
            } else {
                CniAnswer::Later("this node's agent does not know it".to_owned())
            };
        };
        match record.enrollment() {
            Some(enrollment) if enrollment.inode == inode => CniAnswer::Enrolled,
            Some(_) => CniAnswer::Refused("it is enrolled in another network namespace".to_owned()),
            None if record.state() == PodState::Skipped => CniAnswer::Skipped(String::new()),
            None => record.refused(),
        }
    }

    /// A sandbox is being removed. Runtimes repeat this as often as they like.
    pub async fn forget_sandbox(&mut self, container: &str, inode: Option<NetnsInode>) {
        let known = self.sandboxes.take_all_but(|it| it.container != container);
        let inode = known.first().copied().or(inode);
        self.release_empty(|at| inode == Some(at)).await;
    }

    /// All sandboxes but these are gone.
    pub async fn keep_sandboxes(&mut self, containers: &[String]) {
        let gone = self
            .sandboxes
            .take_all_but(|it| containers.contains(&it.container));
        self.release_empty(|at| gone.contains(&at)).await;
    }

    /// Releases pods whose namespaces are being removed. Processes that still run there stay
    /// intercepted.
    async fn release_empty(&mut self, is_removed: impl Fn(NetnsInode) -> bool) {
        let enrolled = self
            .pods
            .iter()
            .filter_map(|(name, record)| Some((name, record.enrollment()?.inode)));
        let removed: Vec<(PodRef, NetnsInode)> = enrolled
            .filter(|(_, inode)| is_removed(*inode))
            .map(|(name, inode)| (name.clone(), inode))
            .collect();
        if removed.is_empty() {
            return;
        }
        let processes = self.processes();
        for (name, inode) in removed {
            if processes.any_in(inode) {
                continue;
            }
            self.release(&name, "its sandbox is removed").await;
            if let Some(record) = self.pods.get_mut(&name) {
                let reason = Some(NO_PROCESS.to_owned());
                record.settle(PodState::Waiting, false, reason);
            }
            self.changed = true;
        }
    }
}

/// The answer for a listed pod that is not to be enrolled, or cannot be.
fn answer_without_goal<N: Node>(record: &Record<N>) -> Option<CniAnswer> {
    if record.goal().is_some() {
        return None;
    }
    let reason = record.reason().unwrap_or_default();
    Some(match record.state() {
        // A label may have been set that the agent has not heard of.
        PodState::Skipped if record.unsure => CniAnswer::Later(format!(
            "{reason}, and this node's agent does not know the labels of its namespace for sure"
        )),
        PodState::Skipped => CniAnswer::Skipped(reason.to_owned()),
        _ => record.refused(),
    })
}

/// Whether a record is of the pod that the runtime means.
fn is_same<N: Node>(record: &Record<N>, sandbox: &Sandbox) -> bool {
    // A manifest in a directory may have no UID.
    record.uid.as_ref().is_none_or(|uid| *uid == sandbox.uid)
}

/// Whether this is the UID of a static pod. Kubelet gives the pods it reads from files a hash for a UID;
/// the API server shows mirrors of them under other UIDs.
fn is_static(uid: &str) -> bool {
    const HASH: usize = 32;
    uid.len() == HASH && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}
