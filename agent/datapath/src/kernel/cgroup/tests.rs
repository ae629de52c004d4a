use std::fs;

use super::{above, narrowest, of_pods_below};

#[test]
fn the_cgroup_that_holds_pods_is_chosen() {
    let root = tempfile::tempdir().unwrap();
    let of_node = || narrowest(root.path().to_owned());
    assert_eq!(of_node(), root.path(), "kubelet has made none yet");
    // Of another cgroup driver, with its classes and no pod.
    fs::create_dir_all(root.path().join("kubepods.slice/kubepods-burstable.slice")).unwrap();
    assert_eq!(of_node(), root.path().join("kubepods.slice"));
    fs::create_dir_all(root.path().join("kubepods/burstable")).unwrap();
    assert_eq!(of_node(), root.path().join("kubepods.slice"));
    let pod = "kubepods/burstable/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21";
    fs::create_dir_all(root.path().join(pod)).unwrap();
    assert_eq!(of_node(), root.path().join("kubepods"));
    let other = "kubepods.slice/kubepods-podb9e5c0ac_6f1b_4b52_9c3a_0d6a1f3b7e22.slice";
    fs::create_dir_all(root.path().join(other)).unwrap();
    let run_in = |pod: &str, populated: &str| {
        let events = root.path().join(pod).join("cgroup.events");
        fs::write(events, format!("populated {populated}\nfrozen 0\n")).unwrap();
    };
    run_in(pod, "1");
    run_in(other, "0");
    assert_eq!(
        of_node(),
        root.path().join("kubepods"),
        "the other driver's pods have ended"
    );
    run_in(other, "1");
    assert_eq!(of_node(), root.path(), "pods run in both");
    fs::remove_dir_all(root.path().join(other)).unwrap();
    assert_eq!(of_node(), root.path().join("kubepods"));
    let unlisted = "kubelet-two/kubepods/podb9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e23";
    fs::create_dir_all(root.path().join(unlisted)).unwrap();
    run_in(unlisted, "0");
    assert_eq!(of_node(), root.path().join("kubepods"));
    run_in(unlisted, "1");
    assert_eq!(
        of_node(),
        root.path(),
        "one runs below a cgroup of another name"
    );
    fs::remove_dir_all(root.path().join(unlisted)).unwrap();
    let uid = "b9e5c0ac-6f1b-4b52-9c3a-0d6a1f3b7e21";
    let found = of_pods_below(root.path());
    assert_eq!(found.get(uid), Some(&root.path().join(pod)));
    assert_eq!(found.len(), 1);
}

#[test]
fn higher_mounts_sort_first() {
    assert!(above("/../../..") > above("/"));
    assert!(above("/") > above("/kubepods.slice"));
}
