//! Which network namespaces a pod's processes are in. What is looked at is bounded: a pod may have any number of
//! processes, and the reconciler waits.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use procfs::process::Stat;
use sidetrack_common::{ids::NetnsInode, task::Place};
use sidetrack_reconcile::Found;

use crate::kernel::{
    cgroup::{self, uid_of_pod},
    tasks::{InNetns, Tasks},
};

/// Cgroups of a pod that are looked at. Those of its containers come first, and a pod has a few of them.
const MAX_CGROUPS: usize = 32;
/// Processes that are looked at in each. The kernel lists those first that joined the cgroup first: the sandbox's own
/// process and the first one of each container.
const MAX_IN_CGROUP: usize = 4;
/// Entries of a cgroup's directory that are looked at.
const MAX_ENTRIES: usize = 1024;

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

    /// A pod's network namespace: the `known` one as long as any process of the pod is in it. Otherwise that of the
    /// oldest process, which is the sandbox's own or was put into the pod's namespace by the runtime. Later processes
    /// may have moved to a namespace they created. None is found while the pod's processes are in namespaces that are
    /// older than the pod.
    fn netns_of_pod(&self, uid: &str, known: Option<NetnsInode>) -> Option<Found> {
        let known = known.map(NetnsInode::get);
        let node = self.0.as_ref()?;
        let (cgroup, members) = node.first_of(uid)?;
        if let Some(inode) = known
            && !members.all.iter().any(|member| member.inode == inode)
            && let Some(pid) = node.process_of(cgroup, inode)
        {
            return Some(Found {
                path: path_of(pid),
                inode: Some(NetnsInode::new(inode)),
            });
        }
        members.netns(known)
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
    fn first_of(&self, uid: &str) -> Option<(&Path, Members)> {
        let in_use = |all: &'_ HashMap<String, PathBuf>| -> Option<Members> {
            let members = Members::first_in(all.get(uid)?);
            (!members.all.is_empty()).then_some(members)
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

/// A process of a pod.
#[derive(Clone, Copy, Debug)]
struct Member {
    pid: i32,
    /// When it started, in clock ticks since boot.
    started: u64,
    /// Its network namespace.
    inode: u64,
}

/// Processes of a pod.
#[derive(Debug, Default)]
struct Members {
    all: Vec<Member>,
    /// When the first of the processes that belong to no pod started, by namespace.
    strangers: HashMap<u64, u64>,
}

impl Members {
    /// Those that joined the pod's cgroups first.
    fn first_in(cgroup: &Path) -> Self {
        let mut members = Self::default();
        let host = super::host_inodes();
        for pid in first_pids(cgroup) {
            // Some of a pod's processes are in the node's namespace (CRI-O's conmon).
            let inode = super::inode_at(&path_of(pid as u32));
            if let Some(inode) = inode.filter(|inode| !host.contains(inode)) {
                members.add(pid, inode);
            }
        }
        members
    }

    fn add(&mut self, pid: i32, inode: u64) {
        let Some((_, stat)) = look_at(pid) else {
            return;
        };
        self.all.push(Member {
            pid,
            started: stat.starttime,
            inode,
        });
        // The runtime that has made it.
        let parent = stat.ppid;
        if super::inode_at(&path_of(parent as u32)) == Some(inode)
            && let Some((None, parent)) = look_at(parent)
        {
            let first = self.strangers.entry(inode).or_insert(parent.starttime);
            *first = parent.starttime.min(*first);
        }
    }

    fn netns(&self, known: Option<u64>) -> Option<Found> {
        let mut all = self.all.iter();
        let in_known = all.find(|member| known == Some(member.inode));
        let oldest = || {
            let own = self.all.iter().filter(|it| !self.is_older(it.inode));
            own.min_by_key(|member| (member.started, member.pid))
        };
        let member = in_known.or_else(oldest)?;
        Some(Found {
            path: path_of(member.pid as u32),
            inode: Some(NetnsInode::new(member.inode)),
        })
    }

    /// Whether a namespace was there before the pod: a process of no pod has been in it for longer than any of
    /// the pod's. It is the runtime's, where that is not in the node's own namespace, and a process of the pod
    /// is on its way from there to its own. Whoever enters a pod's namespace later is no reason.
    fn is_older(&self, inode: u64) -> bool {
        let of_pod = self.all.iter().filter(|member| member.inode == inode);
        let first = of_pod.map(|member| member.started).min();
        let stranger = self.strangers.get(&inode);
        stranger.is_some_and(|stranger| first.is_some_and(|first| *stranger <= first))
    }
}

/// The processes that joined first the cgroups of a pod: [`MAX_IN_CGROUP`] of each, and of the cgroups those first that
/// are higher up. What a container makes below its own does not keep the others from being seen.
fn first_pids(pod: &Path) -> Vec<i32> {
    let mut pids = Vec::new();
    let mut left = VecDeque::from([pod.to_owned()]);
    let mut seen = 0;
    while let Some(cgroup) = left.pop_front() {
        // The kernel makes no more of the text than is read. Each number has a line of ten digits at most.
        let mut text = [0; MAX_IN_CGROUP * 11];
        let procs = File::open(cgroup.join("cgroup.procs"));
        let read = procs.and_then(|mut procs| procs.read(&mut text));
        let listed = String::from_utf8_lossy(&text[..read.unwrap_or_default()]);
        // The last line may be cut off.
        let whole = listed.rfind('\n').map_or("", |end| &listed[..end]);
        pids.extend(pids_in(whole).take(MAX_IN_CGROUP));
        let entries = fs::read_dir(&cgroup).into_iter().flatten().flatten();
        for entry in entries.take(MAX_ENTRIES) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && seen < MAX_CGROUPS {
                seen += 1;
                left.push_back(entry.path());
            }
        }
    }
    pids
}

/// The pod that a process belongs to, if any, and its state; `None` once it has ended.
fn look_at(pid: i32) -> Option<(Option<String>, Stat)> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
    Some((pod_uid(&cgroups), stat.ok()?))
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

/// The pod UID in the text of `/proc/PID/cgroup`. Runtimes put containers below a pod's cgroup. Its
/// parents are ignored: nodes may be nested, and in a private cgroup namespace the path begins with
/// `/../..`.
pub fn pod_uid(cgroups: &str) -> Option<String> {
    cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .find_map(uid_of_pod)
}

#[cfg(test)]
mod tests;
