//! The first processes of a pod's containers, and which of their network namespaces is the pod's.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fs::{self, File},
    io::{self, Read as _},
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
};

use procfs::process::Stat;
use sidetrack_common::ids::NetnsInode;
use sidetrack_reconcile::{Found, NodeError, Sought};

use super::{path_of, pids_in, pod_uids};
use crate::{
    kernel::sys::owning_user_namespace,
    netns::{host_inodes, inode_at},
};

/// Cgroups of a pod that are looked at. Those of its containers come first, and a pod has a few of them.
pub(super) const MAX_CGROUPS: usize = 32;
/// Processes that are looked at in each. The kernel lists those first that joined the cgroup first: the sandbox's own
/// process and the first one of each container.
pub(super) const MAX_IN_CGROUP: usize = 4;
/// Entries of a cgroup's directory that are looked at.
const MAX_ENTRIES: usize = 1024;

/// A process of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) pid: i32,
    /// When it started, in clock ticks since boot.
    pub(super) started: u64,
    /// Its network namespace.
    pub(super) inode: u64,
    /// The number of its container.
    pub(super) container: usize,
}

/// Processes of a pod.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Those in namespaces that may be the pod's.
    pub(super) all: Vec<Member>,
    /// When the first of the processes that belong to no pod started, by namespace.
    pub(super) strangers: HashMap<u64, u64>,
    /// One in a namespace that the pod's processes have made.
    pub(super) elsewhere: Option<i32>,
}

impl Members {
    /// Those that joined the pod's cgroups first.
    pub(super) fn first_in(cgroup: &Path, pod: Sought<'_>) -> Self {
        let mut members = Self::default();
        let host = host_inodes();
        let mut may_be_own = BTreeMap::new();
        for (container, pid) in first_pids(cgroup) {
            let Ok(netns) = File::open(path_of(pid as u32)) else {
                continue;
            };
            let inode = netns.metadata().map_or(0, |meta| meta.ino());
            // Some of a pod's processes are in the node's namespace (CRI-O's conmon).
            if host.contains(&inode) {
                continue;
            }
            let is_known = pod.known.is_some_and(|known| known.get() == inode);
            let may_be_own = may_be_own.entry(inode).or_insert_with(|| {
                is_known || is_made_by_runtime(&netns, pod.own_users).unwrap_or_default()
            });
            if *may_be_own {
                members.add(pid, pod.uid, inode, container);
            } else {
                members.elsewhere.get_or_insert(pid);
            }
        }
        members
    }

    fn add(&mut self, pid: i32, uid: &str, inode: u64, container: usize) {
        let Some((uids, stat)) = look_at(pid) else {
            return;
        };
        // The process that was listed has ended, and another pod's has its number.
        if !uids.iter().any(|of_pod| of_pod == uid) {
            return;
        }
        self.all.push(Member {
            pid,
            started: stat.starttime,
            inode,
            container,
        });
        // The runtime that has made it.
        let parent = stat.ppid;
        if inode_at(&path_of(parent as u32)) == Some(inode)
            && let Some((uids, parent)) = look_at(parent)
            && uids.is_empty()
        {
            let first = self.strangers.entry(inode).or_insert(parent.starttime);
            *first = parent.starttime.min(*first);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.elsewhere.is_none()
    }

    pub(super) fn any_in(&self, inode: u64) -> bool {
        self.all.iter().any(|member| member.inode == inode)
    }

    /// The pod's namespace: the known one if any process is in it, otherwise the one that most of its containers have
    /// a process in, of several the one with the oldest. The runtime puts all containers into it, and their processes
    /// may have moved since. It is in doubt if a container has no process there but in another that may be the pod's,
    /// or, if it was not known, if as many containers have one in that.
    ///
    /// # Errors
    /// While there is none: all may be older than the pod, or made by its processes.
    pub(super) fn netns(&self, known: Option<u64>) -> Result<Found, NodeError> {
        let own = self.all.iter().filter(|it| !self.is_older(it.inode));
        let mut containers = BTreeMap::<u64, BTreeSet<usize>>::new();
        for member in own {
            let of_netns = containers.entry(member.inode).or_default();
            of_netns.insert(member.container);
        }
        let known = known.filter(|known| self.any_in(*known));
        let rank = |(inode, of_netns): &(&u64, &BTreeSet<usize>)| {
            let oldest = self.oldest_in(**inode);
            (
                of_netns.len(),
                Reverse(oldest.map(|it| (it.started, it.pid))),
            )
        };
        let most = || containers.iter().max_by_key(rank).map(|(inode, _)| *inode);
        let chosen = known.or_else(most);
        let member = chosen.and_then(|inode| self.oldest_in(inode));
        let (Some(inode), Some(member)) = (chosen, member) else {
            return Err(NodeError::NotYet(self.reason()));
        };
        let none = BTreeSet::new();
        let own = containers.get(&inode).unwrap_or(&none);
        let rivals = |(other, theirs): &(&u64, &BTreeSet<usize>)| {
            let as_many = known.is_none() && theirs.len() >= own.len();
            **other != inode && (as_many || !theirs.is_subset(own))
        };
        let rival = containers.iter().find(rivals);
        let rival = rival.and_then(|(inode, _)| self.oldest_in(*inode));
        Ok(Found {
            path: path_of(member.pid as u32),
            inode: Some(NetnsInode::new(inode)),
            doubt: rival.map(|rival| doubt(*member, *rival)),
        })
    }

    fn oldest_in(&self, inode: u64) -> Option<&Member> {
        let members = self.all.iter().filter(|member| member.inode == inode);
        members.min_by_key(|member| (member.started, member.pid))
    }

    /// Whether a namespace was there before the pod: a process of no pod has been in it for longer than any of
    /// the pod's. It is the runtime's, where that is not in the node's own namespace, and a process of the pod
    /// is on its way from there to its own. A process that enters a pod's namespace later does not count.
    fn is_older(&self, inode: u64) -> bool {
        let first = self.oldest_in(inode).map(|member| member.started);
        let stranger = self.strangers.get(&inode);
        stranger.is_some_and(|stranger| first.is_some_and(|first| *stranger <= first))
    }

    /// Why there is no namespace.
    fn reason(&self) -> String {
        match self.elsewhere {
            Some(pid) if self.all.is_empty() => format!(
                "no process of it runs in the pod's own network namespace: process {pid} has made one for itself. It is enrolled as soon as another container runs; with the CNI plugin the runtime names the namespace"
            ),
            _ => sidetrack_reconcile::node::NO_PROCESS.to_owned(),
        }
    }
}

/// Why another namespace may be the pod's.
fn doubt(own: Member, rival: Member) -> String {
    format!(
        "the pod's network namespace is not certain: its processes {} and {} are in two that may be it, and only the first one's is intercepted. With the CNI plugin the runtime names it",
        own.pid, rival.pid
    )
}

/// Whether a network namespace can be one that a runtime has made for a pod: it belongs to the node's user namespace,
/// or to one directly below if the pod has users of its own. Processes without privileges can only make namespaces
/// that belong to a user namespace further down.
fn is_made_by_runtime(netns: &File, own_users: bool) -> io::Result<bool> {
    let nodes = fs::metadata("/proc/self/ns/user")?.ino();
    let owner = File::from(owning_user_namespace(netns.as_fd())?);
    if owner.metadata()?.ino() == nodes {
        return Ok(true);
    }
    let parent = || File::from(owning_user_namespace(owner.as_fd())?).metadata();
    Ok(own_users && parent()?.ino() == nodes)
}

/// The processes that joined first the cgroups of a pod, each with the number of its container: [`MAX_IN_CGROUP`] of
/// each, and of the cgroups those first that are higher up. What a container makes below its own does not keep the
/// others from being seen.
pub(super) fn first_pids(pod: &Path) -> Vec<(usize, i32)> {
    let mut pids = Vec::new();
    let mut remaining = VecDeque::from([(None, pod.to_owned())]);
    let mut seen = 0;
    while let Some((container, cgroup)) = remaining.pop_front() {
        // The kernel makes no more of the text than is read. Each number has a line of ten digits at most.
        let mut text = [0; MAX_IN_CGROUP * 11];
        let procs = File::open(cgroup.join("cgroup.procs"));
        let read = procs.and_then(|mut procs| procs.read(&mut text));
        let listed = String::from_utf8_lossy(&text[..read.unwrap_or_default()]);
        // The last line may be cut off.
        let whole = listed.rfind('\n').map_or("", |end| &listed[..end]);
        let first = pids_in(whole).take(MAX_IN_CGROUP);
        pids.extend(first.map(|pid| (container.unwrap_or_default(), pid)));
        let entries = fs::read_dir(&cgroup).into_iter().flatten().flatten();
        for entry in entries.take(MAX_ENTRIES) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && seen < MAX_CGROUPS {
                seen += 1;
                // A container's cgroup is directly below the pod's, what it has made is below its own.
                remaining.push_back((container.or(Some(seen)), entry.path()));
            }
        }
    }
    pids
}

/// The pods that a process belongs to, several where nodes are nested, and its state; `None` once it has ended.
fn look_at(pid: i32) -> Option<(Vec<String>, Stat)> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
    Some((pod_uids(&cgroups).collect(), stat.ok()?))
}

#[cfg(test)]
mod tests;
