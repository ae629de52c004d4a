use sidetrack_common::ids::NetnsInode;
use sidetrack_reconcile::{NodeError, Processes as _, Sought, node::NO_PROCESS};

use super::{Processes, pod_uids};

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
        assert_eq!(pod_uids(path).next().as_deref(), Some(UID), "{path}");
    }
    let fixed = "0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/0123";
    assert_eq!(
        pod_uids(fixed).next().as_deref(),
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
        assert_eq!(pod_uids(path).next(), None, "{path}");
    }
}

#[test]
fn without_processes_there_are_none() {
    let none = Processes::default();
    assert!(none.is_none() && !none.any_in(NetnsInode::new(1)));
    assert_eq!(none.path_of(NetnsInode::new(1)), None);
    let sought = Sought {
        uid: "uid",
        own_users: false,
        known: None,
    };
    let reason = NodeError::NotYet(NO_PROCESS.to_owned());
    assert_eq!(none.netns_of_pod(sought), Err(reason));
}
