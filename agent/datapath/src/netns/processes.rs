//! Which network namespaces a pod's processes are in. What is looked at is bounded: a pod may have any number of
//! processes, and the reconciler waits.

mod members;

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use sidetrack_common::{ids::NetnsInode, task::Place};
use sidetrack_reconcile::{Found, NodeError, Sought, node::NO_PROCESS};

use self::members::Members;

use crate::kernel::{
    cgroup::{self, uid_of_pod},
    tasks::{InNetns, Tasks},
};

/// Answers about the node's processes. Each is looked for when it is asked for.
#[derive(Debug, Default)]
pub struct Processes(Option<Node>);

/// Where to look.
#[derive(Debug)]
pub struct Node {
    /// Counts the processes in network namespaces.
    pub tasks: Arc<Tasks>,
    /// The namespaces that may be asked about.
    pub inodes: BTreeSet<u64>,
    /// The cgroup of all pods.
    pub pods: PathBuf,
    /// Cgroups of pods, by UID, where they are known already.
    pub cgroups: OnceCell<HashMap<String, PathBuf>>,
    /// The same wherever cgroups are mounted.
    pub anywhere: OnceCell<HashMap<String, PathBuf>>,
    /// What the kernel has counted.
    pub counted: OnceCell<Option<BTreeMap<u64, InNetns>>>,
}

impl Processes {
    /// The processes of the node.
    #[must_use]
    pub fn of(node: Node) -> Self {
        Self(Some(node))
    }

    /// Whether there are none, as in a namespace that was just made.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl sidetrack_reconcile::Processes for Processes {
    fn none() -> Self {
        Self::default()
    }

    fn any_in(&self, inode: NetnsInode) -> bool {
        let Some(node) = &self.0 else { return false };
        let counted = node.counted().and_then(|counted| counted.get(&inode.get()));
        counted.is_none_or(|found| !found.is_empty())
    }

    fn path_of(&self, inode: NetnsInode) -> Option<PathBuf> {
        let found = self.0.as_ref()?.counted()?.get(&inode.get())?;
        Some(path_of(found.any()?))
    }

    /// A pod's network namespace: the known one as long as any process of the pod is in it. Otherwise it is among
    /// those of the first processes of its containers, see [`Members::netns`].
    fn netns_of_pod(&self, pod: Sought<'_>) -> Result<Found, NodeError> {
        let node = self.0.as_ref();
        let first = node.and_then(|node| Some((node, node.first_of(pod)?)));
        let Some((node, (cgroup, members))) = first else {
            return Err(NodeError::NotYet(NO_PROCESS.to_owned()));
        };
        if let Some(known) = pod.known
            && !members.any_in(known.get())
            && let Some(pid) = node.process_of(cgroup, known.get())
        {
            return Ok(Found {
                path: path_of(pid),
                inode: Some(known),
                doubt: None,
            });
        }
        members.netns(pod.known.map(NetnsInode::get))
    }
}

impl Node {
    /// The processes in the namespaces; `None` if the kernel does not say.
    fn counted(&self) -> Option<&BTreeMap<u64, InNetns>> {
        let counted = self.counted.get_or_init(|| {
            let inodes = self.inodes.iter().map(|inode| (*inode, None)).collect();
            let counted = self.tasks.count(&inodes, 0);
            counted
                .inspect_err(|error| tracing::error!("list the node's processes: {error}"))
                .ok()
        });
        counted.as_ref()
    }

    /// A pod's cgroup that has processes, and the first of them.
    fn first_of(&self, pod: Sought<'_>) -> Option<(&Path, Members)> {
        let uid = pod.uid;
        let in_use = |all: &'_ HashMap<String, PathBuf>| -> Option<Members> {
            let members = Members::first_in(all.get(uid)?, pod);
            (!members.is_empty()).then_some(members)
        };
        let all = self
            .cgroups
            .get_or_init(|| cgroup::of_pods_below(&self.pods));
        if let Some(members) = in_use(all) {
            return Some((all.get(uid)?, members));
        }
        let all = self.anywhere.get_or_init(cgroup::of_pods_anywhere);
        Some((all.get(uid)?, in_use(all)?))
    }

    /// A process of a pod in a namespace, wherever it is below the pod's cgroup.
    fn process_of(&self, cgroup: &Path, inode: u64) -> Option<u32> {
        let own = cgroup::id(cgroup).ok();
        let counted = self.tasks.count(&BTreeMap::from([(inode, own)]), 0).ok()?;
        let group = counted.get(&inode)?.at(Place::Own);
        (group.pid != 0).then_some(group.pid)
    }
}

fn path_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/ns/net"))
}

/// A process in a network namespace, for commands: it reads all of `/proc`.
#[must_use]
pub fn process_in(inode: u64) -> Option<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(|pid| super::inode_at(&path_of(*pid as u32)) == Some(inode))
}

/// Process ids in the text of `cgroup.procs`. Processes of other pid namespaces are 0 there.
pub fn pids_in(listed: &str) -> impl Iterator<Item = i32> {
    let pids = listed.lines().filter_map(|line| line.parse::<i32>().ok());
    pids.filter(|pid| *pid > 0)
}

/// The pod UIDs in the text of `/proc/PID/cgroup`. Runtimes put containers below a pod's cgroup. Its
/// parents are ignored: nodes may be nested, and in a private cgroup namespace the path begins with
/// `/../..`.
pub fn pod_uids(cgroups: &str) -> impl Iterator<Item = String> {
    let paths = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .flat_map(|path| path.split('/'))
        .filter_map(uid_of_pod)
}

#[cfg(test)]
mod tests;
