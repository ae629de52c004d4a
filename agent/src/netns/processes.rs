//! The node's processes: which network namespaces they are in, and which pods they belong to.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use procfs::process::Stat;

use crate::kernel::cgroup::uid_of_pod;

/// Processes at one time.
#[derive(Debug, Default)]
pub struct Processes {
    /// The processes could not be listed: any namespace may have some.
    unknown: bool,
    by_netns: HashMap<u64, Vec<i32>>,
    by_pod: HashMap<String, Vec<Member>>,
    /// When the first of the processes that belong to no pod started, by namespace.
    strangers: HashMap<u64, u64>,
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

/// Where a network namespace was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path; valid as long as the process lives.
    pub path: PathBuf,
    /// Its inode, where known: when the path is opened it may lead to another namespace.
    pub inode: Option<u64>,
}

impl Processes {
    /// Lists every process of the node.
    pub fn now() -> Result<Self> {
        // Processes that end meanwhile are left out.
        Ok(Self::of(all().context("list /proc")?))
    }

    /// Unknown processes: no pod counts as gone.
    pub fn unseen() -> Self {
        Self {
            unknown: true,
            ..Self::default()
        }
    }

    /// Lists the processes in a cgroup and in the cgroups below it.
    pub fn in_cgroup(path: &Path) -> Self {
        Self::of(in_cgroup(path))
    }

    fn of(pids: impl IntoIterator<Item = i32>) -> Self {
        let mut processes = Self::default();
        let host = super::host_inodes();
        for pid in pids {
            let Some(inode) = super::inode_at(format!("/proc/{pid}/ns/net").as_ref()) else {
                continue;
            };
            processes.by_netns.entry(inode).or_default().push(pid);
            // Some of a pod's processes are in the node's namespace (CRI-O's conmon).
            if !host.contains(&inode) {
                processes.add_member(pid, inode);
            }
        }
        processes
    }

    fn add_member(&mut self, pid: i32, inode: u64) {
        let Some((uid, stat)) = look_at(pid) else {
            return;
        };
        let Some(uid) = uid else {
            return self.add_stranger(inode, stat.starttime);
        };
        self.by_pod.entry(uid).or_default().push(Member {
            pid,
            started: stat.starttime,
            inode,
        });
        // Seen also where only the pod's own processes are listed: the runtime that has made it.
        let parent = stat.ppid;
        if super::inode_at(format!("/proc/{parent}/ns/net").as_ref()) == Some(inode)
            && let Some((None, parent)) = look_at(parent)
        {
            self.add_stranger(inode, parent.starttime);
        }
    }

    fn add_stranger(&mut self, inode: u64, started: u64) {
        let first = self.strangers.entry(inode).or_insert(started);
        *first = started.min(*first);
    }

    /// Whether a namespace was there before the pod: a process of no pod has been in it for longer than any of
    /// the pod's. It is the runtime's, where that is not in the node's own namespace, and a process of the pod
    /// is on its way from there to its own. Whoever enters a pod's namespace later is no reason.
    fn is_older(&self, inode: u64, members: &[Member]) -> bool {
        let of_pod = members.iter().filter(|member| member.inode == inode);
        let first = of_pod.map(|member| member.started).min();
        let stranger = self.strangers.get(&inode);
        stranger.is_some_and(|stranger| first.is_some_and(|first| *stranger <= first))
    }

    /// Processes in a namespace.
    pub fn in_netns(&self, inode: u64) -> &[i32] {
        self.by_netns.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// A path to a namespace, by one of its processes.
    pub fn path_of(&self, inode: u64) -> Option<PathBuf> {
        let pid = self.in_netns(inode).first()?;
        Some(PathBuf::from(format!("/proc/{pid}/ns/net")))
    }

    /// Whether a namespace has a process, or may have one.
    pub fn any_in(&self, inode: u64) -> bool {
        self.unknown || self.by_netns.contains_key(&inode)
    }

    /// A pod's network namespace: the `known` one (an inode) as long as any process of the pod is in it.
    /// Otherwise that of the oldest process, which is the sandbox's own or was put into the pod's namespace
    /// by the runtime. Later processes may have moved to a namespace they created. None is found while the pod's
    /// processes are in namespaces that are older than the pod.
    pub fn netns_of_pod(&self, uid: &str, known: Option<u64>) -> Option<Found> {
        let members = self.by_pod.get(uid)?;
        let in_known = members
            .iter()
            .find(|member| known.is_some_and(|known| member.inode == known));
        let oldest = || {
            members
                .iter()
                .filter(|member| !self.is_older(member.inode, members))
                .min_by_key(|member| (member.started, member.pid))
        };
        let member = in_known.or_else(oldest)?;
        Some(Found {
            path: PathBuf::from(format!("/proc/{}/ns/net", member.pid)),
            inode: Some(member.inode),
        })
    }
}

/// The pod that a process belongs to, if any, and its state; `None` once it has ended.
fn look_at(pid: i32) -> Option<(Option<String>, Stat)> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let stat = procfs::process::Process::new(pid).and_then(|process| process.stat());
    Some((pod_uid(&cgroups), stat.ok()?))
}

/// Ids of all processes of the node.
fn all() -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        pids.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// Ids of the processes in some network namespaces, each with the inode of its namespace.
pub fn in_namespaces(inodes: &BTreeSet<u64>) -> Vec<(i32, u64)> {
    let pids = all().unwrap_or_default().into_iter();
    pids.filter_map(|pid| {
        let inode = super::inode_at(format!("/proc/{pid}/ns/net").as_ref())?;
        inodes.contains(&inode).then_some((pid, inode))
    })
    .collect()
}

/// Ids of the processes in a cgroup and in the cgroups below it.
pub fn in_cgroup(path: &Path) -> BTreeSet<i32> {
    let mut pids = Vec::new();
    list_cgroup(path, &mut pids);
    pids.into_iter().collect()
}

fn list_cgroup(path: &Path, pids: &mut Vec<i32>) {
    let listed = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    pids.extend(pids_in(&listed));
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list_cgroup(&entry.path(), pids);
        }
    }
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
mod tests {
    use super::{Member, Processes, pod_uid};

    #[test]
    fn cgroup_paths_of_every_driver_and_runtime() {
        const UID: &str = "b9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21";
        for path in [
            // systemd, containerd
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb9e5c0ac_6f1b_4b52_9c3a_0d6a1f3b7e21.slice/cri-containerd-0123.scope",
            // systemd, CRI-O, guaranteed
            "0::/kubepods.slice/kubepods-podb9e5c0ac_6f1b_4b52_9c3a_0d6a1f3b7e21.slice/crio-0123.scope/container",
            // cgroupfs, containerd
            "0::/kubepods/besteffort/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21/0123",
            // Docker, hybrid: the version 1 lines come first
            "12:cpuset:/kubepods/burstable/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21/0123\n0::/system.slice/docker.service",
            // kind, from the node and from outside it
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-podb9e5c0ac_6f1b_4b52_9c3a_0d6a1f3b7e21.slice/cri-containerd-0123.scope",
            "0::/docker/4567/kubelet/kubepods/burstable/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21/0123",
            // a private cgroup namespace
            "0::/../../../burstable/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21/0123",
            "0::/../../kubepods-burstable-podb9e5c0ac_6f1b_4b52_9c3a_0d6a1f3b7e21.slice/cri-containerd-0123.scope",
        ] {
            assert_eq!(pod_uid(path).as_deref(), Some(UID), "{path}");
        }
        let fixed = "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/0123";
        assert_eq!(
            pod_uid(fixed).as_deref(),
            Some("0123456789abcdef0123456789abcdef")
        );
    }

    #[test]
    fn other_cgroups_belong_to_no_pod() {
        for path in [
            "",
            "0::/",
            "0::/kubepods.slice",
            "0::/kubepods/burstable",
            "0::/system.slice/podman.service",
            "0::/user.slice/pod-racing.scope",
            "0::/machine.slice/libpod-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope",
            "broken",
        ] {
            assert_eq!(pod_uid(path), None, "{path}");
        }
    }

    fn with_pod(members: &[(i32, u64, u64)]) -> Processes {
        let members = members.iter().map(|&(pid, started, inode)| Member {
            pid,
            started,
            inode,
        });
        let mut processes = Processes::default();
        processes.by_pod.insert("uid".to_owned(), members.collect());
        processes
    }

    #[test]
    fn the_oldest_process_leads_to_the_pods_namespace() {
        let processes = with_pod(&[(30, 500, 2), (20, 400, 1), (10, 400, 3)]);
        let found = processes.netns_of_pod("uid", None).unwrap();
        assert_eq!(found.inode, Some(3), "of the same age the lower pid");
        assert_eq!(found.path.to_str(), Some("/proc/10/ns/net"));
        assert_eq!(processes.netns_of_pod("other", None), None);
    }

    #[test]
    fn the_known_namespace_wins_while_it_has_a_process() {
        let processes = with_pod(&[(20, 400, 1), (30, 500, 2)]);
        let inode = |known| processes.netns_of_pod("uid", Some(known)).unwrap().inode;
        assert_eq!(inode(2), Some(2));
        assert_eq!(inode(9), Some(1), "gone");
    }

    #[test]
    fn a_namespace_that_is_older_than_the_pod_is_not_its_own() {
        let mut processes = with_pod(&[(20, 400, 1), (30, 500, 2)]);
        let inode = |processes: &Processes| processes.netns_of_pod("uid", None).map(|it| it.inode);
        // Somebody who entered it later.
        processes.strangers.insert(1, 450);
        assert_eq!(inode(&processes), Some(Some(1)));
        // The runtime's.
        processes.strangers.insert(1, 100);
        assert_eq!(inode(&processes), Some(Some(2)));
        processes.strangers.insert(2, 100);
        assert_eq!(inode(&processes), None, "it waits");
        let known = processes.netns_of_pod("uid", Some(1)).unwrap();
        assert_eq!(known.inode, Some(1), "enrolled ones stay");
    }

    #[test]
    fn unknown_processes_may_be_in_any_namespace() {
        assert!(Processes::unseen().any_in(1));
        assert!(!Processes::default().any_in(1));
        let mut processes = Processes::default();
        processes.by_netns.insert(1, vec![20, 30]);
        assert!(processes.any_in(1) && !processes.any_in(2));
        assert_eq!(processes.in_netns(1), [20, 30]);
        assert!(processes.in_netns(2).is_empty());
        assert_eq!(
            processes
                .path_of(1)
                .as_deref()
                .and_then(|path| path.to_str()),
            Some("/proc/20/ns/net")
        );
    }
}
