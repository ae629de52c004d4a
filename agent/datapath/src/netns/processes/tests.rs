use std::fs;

use sidetrack_common::ids::NetnsInode;
use sidetrack_reconcile::Processes as _;

use super::{MAX_CGROUPS, MAX_IN_CGROUP, Member, Members, Processes, first_pids, pod_uid};

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

fn with_pod(members: &[(i32, u64, u64)]) -> Members {
    let members = members.iter().map(|&(pid, started, inode)| Member {
        pid,
        started,
        inode,
    });
    Members {
        all: members.collect(),
        ..Members::default()
    }
}

fn at(inode: u64) -> Option<NetnsInode> {
    Some(NetnsInode::new(inode))
}

#[test]
fn the_oldest_process_leads_to_the_pods_namespace() {
    let members = with_pod(&[(30, 500, 2), (20, 400, 1), (10, 400, 3)]);
    let found = members.netns(None).unwrap();
    assert_eq!(found.inode, at(3), "of the same age the lower pid");
    assert_eq!(found.path.to_str(), Some("/proc/10/ns/net"));
    assert_eq!(with_pod(&[]).netns(None), None);
}

#[test]
fn the_known_namespace_wins_while_it_has_a_process() {
    let members = with_pod(&[(20, 400, 1), (30, 500, 2)]);
    let inode = |known| members.netns(Some(known)).unwrap().inode;
    assert_eq!(inode(2), at(2));
    assert_eq!(inode(9), at(1), "gone");
}

#[test]
fn a_namespace_that_is_older_than_the_pod_is_not_its_own() {
    let mut members = with_pod(&[(20, 400, 1), (30, 500, 2)]);
    let inode = |members: &Members| members.netns(None).map(|it| it.inode);
    // Somebody who entered it later.
    members.strangers.insert(1, 450);
    assert_eq!(inode(&members), Some(at(1)));
    // The runtime's.
    members.strangers.insert(1, 100);
    assert_eq!(inode(&members), Some(at(2)));
    members.strangers.insert(2, 100);
    assert_eq!(inode(&members), None, "it waits");
    let known = members.netns(Some(1)).unwrap();
    assert_eq!(known.inode, at(1), "enrolled ones stay");
}

#[test]
fn of_a_crowd_the_first_of_each_container_are_looked_at() {
    let pod = tempfile::tempdir().unwrap();
    let write = |cgroup: &str, first: u32| {
        let path = pod.path().join(cgroup);
        fs::create_dir_all(&path).unwrap();
        let listed: String = (first..first + 20_000)
            .map(|pid| format!("{pid}\n"))
            .collect();
        fs::write(path.join("cgroup.procs"), listed).unwrap();
    };
    write("sandbox", 100);
    write("app", 10_000_000);
    for number in 0..1000 {
        write(&format!("app/made-{number}"), 20_000_000 + number * 20_000);
    }
    let pids = first_pids(pod.path());
    assert!(
        pids.len() <= (MAX_CGROUPS + 1) * MAX_IN_CGROUP,
        "{}",
        pids.len()
    );
    for first in [100, 10_000_000] {
        assert!(pids.contains(&first), "{pids:?}");
    }
    assert!(pids.iter().all(|pid| pid % 20_000 <= 104), "{pids:?}");
}

#[test]
fn without_processes_there_are_none() {
    let none = Processes::default();
    assert!(none.is_none() && !none.any_in(NetnsInode::new(1)));
    assert_eq!(
        (
            none.path_of(NetnsInode::new(1)),
            none.netns_of_pod("uid", None)
        ),
        (None, None)
    );
}
