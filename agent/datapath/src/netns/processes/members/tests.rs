use std::fs;

use sidetrack_common::ids::NetnsInode;
use sidetrack_reconcile::{NodeError, node::NO_PROCESS};

use super::{MAX_CGROUPS, MAX_IN_CGROUP, Member, Members, first_pids};

/// Processes of a pod: each one's number, start, namespace and container.
fn with_pod(members: &[(i32, u64, u64, usize)]) -> Members {
    let members = members
        .iter()
        .map(|&(pid, started, inode, container)| Member {
            pid,
            started,
            inode,
            container,
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
    let members = with_pod(&[(30, 500, 2, 1), (20, 400, 1, 1), (10, 400, 3, 1)]);
    let found = members.netns(None).unwrap();
    assert_eq!(found.inode, at(3), "of the same age the lower pid");
    assert_eq!(found.path.to_str(), Some("/proc/10/ns/net"));
    let none = with_pod(&[]).netns(None).unwrap_err();
    assert_eq!(none, NodeError::NotYet(NO_PROCESS.to_owned()));
}

#[test]
fn the_known_namespace_wins_while_it_has_a_process() {
    let members = with_pod(&[(20, 400, 1, 1), (30, 500, 2, 1)]);
    let found = |known| members.netns(Some(known)).unwrap();
    assert_eq!((found(2).inode, found(2).doubt), (at(2), None));
    assert_eq!(found(9).inode, at(1), "gone");
    assert!(found(9).doubt.is_some());
}

#[test]
fn a_namespace_that_is_older_than_the_pod_is_not_its_own() {
    let mut members = with_pod(&[(20, 400, 1, 1), (30, 500, 2, 1)]);
    let found = |members: &Members| members.netns(None).map(|it| (it.inode, it.doubt.is_some()));
    // Somebody who entered it later.
    members.strangers.insert(1, 450);
    assert_eq!(found(&members), Ok((at(1), true)));
    // The runtime's.
    members.strangers.insert(1, 100);
    assert_eq!(found(&members), Ok((at(2), false)));
    members.strangers.insert(2, 100);
    assert!(found(&members).is_err(), "it waits");
    let known = members.netns(Some(1)).unwrap();
    assert_eq!(known.inode, at(1), "enrolled ones stay");
}

#[test]
fn the_namespace_that_most_containers_are_in_is_the_pods() {
    let found = |members: &[(i32, u64, u64, usize)]| {
        let found = with_pod(members).netns(None).unwrap();
        let doubt = found.doubt.unwrap_or_default();
        (found.inode, doubt)
    };
    // The oldest process of the first container has moved, and another one of it has not.
    let (inode, doubt) = found(&[(10, 100, 2, 1), (11, 101, 1, 1), (20, 200, 1, 2)]);
    assert_eq!((inode, &*doubt), (at(1), ""));
    // All of the first container have moved.
    let (inode, doubt) = found(&[(10, 100, 2, 1), (20, 200, 1, 2), (30, 300, 1, 3)]);
    assert_eq!(inode, at(1));
    assert!(doubt.contains("its processes 20 and 10 are"), "{doubt}");
    // As many are in one as in the other.
    let (inode, doubt) = found(&[(10, 100, 2, 1), (20, 200, 1, 2)]);
    assert_eq!(inode, at(2));
    assert!(!doubt.is_empty());
    let (_, doubt) = found(&[(10, 100, 2, 1), (11, 101, 1, 1)]);
    assert!(!doubt.is_empty());
}

#[test]
fn a_namespace_that_the_pod_has_made_is_not_its_own() {
    let mut members = with_pod(&[(20, 400, 1, 2)]);
    members.elsewhere = Some(10);
    assert_eq!(members.netns(None).unwrap().inode, at(1));
    members.all.clear();
    let NodeError::NotYet(reason) = members.netns(None).unwrap_err() else {
        panic!("it waits");
    };
    assert!(
        reason.contains("process 10 has made one for itself"),
        "{reason}"
    );
    assert!(
        !members.is_empty(),
        "there is nothing to look for elsewhere"
    );
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
    let container = |first: i32| {
        let found = pids.iter().find(|(_, pid)| *pid == first);
        found.map(|(container, _)| *container)
    };
    assert!(
        container(100).is_some() && container(10_000_000).is_some(),
        "{pids:?}"
    );
    assert_ne!(container(100), container(10_000_000));
    let made = pids.iter().filter(|(_, pid)| *pid >= 20_000_000);
    assert!(made.clone().count() > 0);
    for (made, pid) in made {
        assert_eq!(Some(*made), container(10_000_000), "{pid}");
    }
    assert!(pids.iter().all(|(_, pid)| pid % 20_000 <= 104), "{pids:?}");
}
