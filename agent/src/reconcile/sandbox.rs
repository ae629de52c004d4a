//! Pods that a container runtime is about to start: their namespaces are known before any process is
//! in them.

use std::collections::BTreeMap;

use super::{Entry, Processes, Reconciler, look_at_processes};
use crate::{
    api::PodState,
    cni::attach::{Answer, Sandbox},
    netns::{NetnsError, inode_at, processes::Found},
};
use sidetrack_policy::{PodRef, manifest::NetnsRef};

/// A namespace that the CNI plugin told of.
#[derive(Debug)]
pub(super) struct Told {
    pod: PodRef,
    container: String,
    found: Found,
    /// Whether nothing has run in it yet, as far as anybody knows.
    fresh: bool,
}

impl Told {
    /// Whether its pod is still known.
    pub(super) fn is_of(&self, pods: &BTreeMap<PodRef, Entry>) -> bool {
        pods.contains_key(&self.pod)
    }

    /// Where it is, as long as it is there.
    fn found(&self) -> Option<&Found> {
        (inode_at(&self.found.path) == self.found.inode).then_some(&self.found)
    }
}

impl Reconciler {
    /// Enrolls a pod in a namespace that was just made for it; [`Answer::Later`] if it is not known
    /// what becomes of it.
    pub async fn attach(&mut self, sandbox: &Sandbox, found: &Found) -> Answer {
        let name = sandbox.pod();
        if is_static(&sandbox.uid) {
            return Answer::NotTaken("it is a static pod, which no injector sees".to_owned());
        }
        let known = self.pods.get(&name);
        let Some(entry) = known.filter(|entry| is_same(entry, sandbox) && !entry.unlisted) else {
            return match self.running_counts {
                // A directory names all there are, as far as it can be read.
                Some(false) if known.is_none() && !self.listed_all => Answer::Later(format!(
                    "no manifest names it, but not all could be read: {}",
                    self.problems.join("; ")
                )),
                Some(false) if known.is_none() => {
                    Answer::NotTaken("no manifest names it".to_owned())
                }
                Some(false) => Answer::Refused(
                    "the manifest of that name is another pod's: it has another UID".to_owned(),
                ),
                Some(true) => Answer::Later(
                    "this node's agent has not heard of it from the API server yet".to_owned(),
                ),
                None => Answer::Later("this node's agent does not know its pods yet".to_owned()),
            };
        };
        let Some(goal) = &entry.goal else {
            let reason = entry.reason.clone().unwrap_or_default();
            return match entry.state {
                // A label may have been set that nobody here has heard of.
                PodState::NotTaken if entry.unsure => Answer::Later(format!(
                    "{reason}, and this node's agent does not know the labels of its namespace for sure"
                )),
                PodState::NotTaken => Answer::NotTaken(reason),
                _ => entry.refused(),
            };
        };
        if matches!(&goal.place, NetnsRef::Path(path) if inode_at(path) != Some(sandbox.inode)) {
            return Answer::Refused(format!(
                "annotation sidetrack.dev/netns in {} names another network namespace than {}",
                entry.origin,
                sandbox.netns.display()
            ));
        }
        let enrolled_at = entry.enrollment().map(super::Enrollment::inode);
        if enrolled_at == Some(sandbox.inode) && entry.is_settled() {
            return Answer::Enrolled;
        }
        if enrolled_at.is_some_and(|inode| inode != sandbox.inode) {
            self.let_depart(&name, "its sandbox was made anew").await;
        }
        self.sandboxes.insert(
            sandbox.uid.clone(),
            Told {
                pod: name.clone(),
                container: sandbox.container.clone(),
                found: found.clone(),
                fresh: enrolled_at != Some(sandbox.inode)
                    && self.inherited.inode(&name) != Some(sandbox.inode),
            },
        );
        // Nothing runs in it yet, unless somebody asks for the second time.
        let mut processes = match enrolled_at {
            None if self.inherited.inode(&name).is_none() => Some(Processes::default()),
            _ => None,
        };
        self.converge(&name, &mut processes).await;
        self.dirty = true;
        let Some(entry) = self.pods.get(&name) else {
            return Answer::Later("it is gone".to_owned());
        };
        match (entry.enrollment(), entry.state) {
            (Some(enrollment), _) if enrollment.inode() == sandbox.inode => Answer::Enrolled,
            (None, PodState::Waiting) => Answer::Later(entry.reason.clone().unwrap_or_default()),
            _ => entry.refused(),
        }
    }

    /// Whether a pod is as [`Reconciler::attach`] left it.
    pub fn check(&self, sandbox: &Sandbox) -> Answer {
        let name = sandbox.pod();
        let entry = self.pods.get(&name);
        let entry = entry.filter(|entry| is_same(entry, sandbox));
        match entry.map(|entry| (entry, entry.enrollment(), entry.state)) {
            Some((_, Some(enrollment), _)) if enrollment.inode() == sandbox.inode => {
                Answer::Enrolled
            }
            Some((_, Some(_), _)) => {
                Answer::Refused("it is enrolled in another network namespace".to_owned())
            }
            Some((_, None, PodState::NotTaken)) => Answer::NotTaken(String::new()),
            Some((entry, None, _)) => entry.refused(),
            None if is_static(&sandbox.uid) || self.running_counts == Some(false) => {
                Answer::NotTaken(String::new())
            }
            None => Answer::Later("this node's agent does not know it".to_owned()),
        }
    }

    /// A sandbox is being removed; asked for as often as a runtime likes.
    pub async fn forget_sandbox(&mut self, container: &str, inode: Option<u64>) {
        let told = self.sandboxes.values();
        let inode = told
            .filter(|told| told.container == container)
            .find_map(|told| told.found.inode)
            .or(inode);
        self.sandboxes.retain(|_, told| told.container != container);
        self.leave_empty(|at| inode == Some(at)).await;
    }

    /// All sandboxes but these are gone.
    pub async fn keep_sandboxes(&mut self, containers: &[String]) {
        let gone = |told: &Told| !containers.contains(&told.container);
        let inodes: Vec<u64> = self
            .sandboxes
            .values()
            .filter(|told| gone(told))
            .filter_map(|told| told.found.inode)
            .collect();
        self.sandboxes.retain(|_, told| !gone(told));
        self.leave_empty(|at| inodes.contains(&at)).await;
    }

    /// Takes pods out whose namespaces are being removed. Whoever still runs there stays intercepted.
    async fn leave_empty(&mut self, is_removed: impl Fn(u64) -> bool) {
        let mut gone: Vec<(PodRef, u64)> = Vec::new();
        for (name, entry) in &self.pods {
            let inode = entry.enrollment().map(super::Enrollment::inode);
            gone.extend(
                inode
                    .filter(|inode| is_removed(*inode))
                    .map(|inode| (name.clone(), inode)),
            );
        }
        if gone.is_empty() {
            return;
        }
        let processes = look_at_processes();
        for (name, _) in gone
            .into_iter()
            .filter(|(_, inode)| !processes.any_in(*inode))
        {
            self.leave(&name, "its sandbox is removed").await;
            if let Some(entry) = self.pods.get_mut(&name) {
                entry.settle(PodState::Waiting, Some(NetnsError::NoProcess.to_string()));
            }
            self.dirty = true;
        }
    }

    /// A pod's namespace as the plugin told of it.
    pub(super) fn told(&self, place: &NetnsRef) -> Option<Found> {
        let NetnsRef::PodUid(uid) = place else {
            return None;
        };
        self.sandboxes.get(uid)?.found().cloned()
    }

    /// Whether the plugin has told of a pod's namespace, and it has not been enrolled there yet. Answers
    /// so once.
    pub(super) fn is_fresh(&mut self, place: &NetnsRef) -> bool {
        let NetnsRef::PodUid(uid) = place else {
            return false;
        };
        let told = self.sandboxes.get_mut(uid);
        told.is_some_and(|told| std::mem::take(&mut told.fresh))
    }

    /// Inodes of namespaces that exist although nothing may run in them yet.
    pub(super) fn sandbox_inodes(&self) -> Vec<u64> {
        let told = self.sandboxes.values().filter_map(Told::found);
        told.filter_map(|found| found.inode).collect()
    }
}

/// Whether it is the pod of that name that the runtime means.
fn is_same(entry: &Entry, sandbox: &Sandbox) -> bool {
    // A manifest in a directory may have no UID.
    entry.uid.as_ref().is_none_or(|uid| *uid == sandbox.uid)
}

/// Kubelet gives the pods it reads from files a hash for a UID; the API server shows mirrors of them
/// under other UIDs.
fn is_static(uid: &str) -> bool {
    const HASH: usize = 32;
    uid.len() == HASH && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}
