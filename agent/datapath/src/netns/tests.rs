use std::{
    os::{fd::AsRawFd as _, unix::fs::symlink},
    path::Path,
};

use super::{NetnsError, inode_at, inode_of, may_lead_to, namespace_at, of_kernel};

#[test]
fn only_the_kernels_own_paths_are_looked_at_here() {
    for path in [
        "/proc/1/ns/net",
        "/proc/self/ns/net",
        "/run/netns/app",
        "/var/run/netns/cni-1",
        "/proc/1/root/var/run/netns/cni-1",
    ] {
        assert!(of_kernel(Path::new(path)).is_some(), "{path}");
    }
    for path in [
        "/proc",
        "/proc/1/root",
        "/proc/77/fd/9",
        "/proc/1/root/tmp/ns/net",
        "/proc/1/cwd/net",
        "/proc/../ns/net",
        "/proc/1/../ns/net",
        "/proc/1/ns/net/x",
        "/run/netns",
        "/run/netns/..",
        "/run/netns/a/b",
        "/run/netns/../../mnt/app",
        "/mnt/app",
        "run/netns/app",
    ] {
        assert!(of_kernel(Path::new(path)).is_none(), "{path}");
    }
}

#[test]
fn a_closed_descriptor_leads_nowhere() {
    let file = std::fs::File::open("/dev/null").expect("a file");
    let path = |number| format!("/proc/self/fd/{number}");
    assert!(may_lead_to(path(file.as_raw_fd()).as_ref(), 1));
    assert!(!may_lead_to(path(99_999).as_ref(), 1));
    assert!(may_lead_to("/mnt/app".as_ref(), 1), "it is not asked");
}

/// What may be on any file system is opened by another process, and is the same.
#[test]
fn namespaces_at_any_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("link");
    symlink("/proc/self/ns/net", &link).expect("a link");
    let own = inode_at("/proc/self/ns/net".as_ref());
    assert_eq!(inode_of(&link).ok(), own);
    assert!(matches!(
        namespace_at(dir.path()),
        Err(NetnsError::NotNetns(_))
    ));
    let missing = namespace_at(&dir.path().join("missing"));
    assert!(
        matches!(missing, Err(NetnsError::Missing(_))),
        "{missing:?}"
    );
}
