//! Finds the cgroup to attach to: the narrowest that holds all pods.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Where kubelet puts pods, by cgroup driver; the last is kind's.
const POD_CGROUPS: [&str; 4] = [
    "kubepods.slice",
    "kubepods",
    "kubelet.slice/kubelet-kubepods.slice",
    "kubelet/kubepods",
];

/// The cgroup2 mount, wherever it is (hybrid hosts have it below `/sys/fs/cgroup/unified`).
///
/// A container with a cgroup namespace of its own has a mount whose root is its own cgroup, without pods.
/// Of several mounts the one with the highest root is used.
pub fn mount() -> Result<PathBuf> {
    let mounts = procfs::process::Process::myself()
        .and_then(|own| own.mountinfo())
        .context("read /proc/self/mountinfo")?;
    mounts
        .into_iter()
        .filter(|mount| mount.fs_type == "cgroup2")
        .min_by_key(|mount| -above(&mount.root))
        .map(|mount| mount.mount_point)
        .context(
            "no cgroup2 is mounted: run `mount -t cgroup2 none /sys/fs/cgroup/unified` (create the directory first), or pass --cgroup PATH",
        )
}

/// How many levels a mount's root is above the root of this process's cgroup namespace: 2 for `/../..`.
/// Mounts of a part of the hierarchy are negative.
fn above(root: &str) -> isize {
    let names = root.split('/').filter(|name| !name.is_empty());
    names.map(|name| if name == ".." { 1 } else { -1 }).sum()
}

/// The cgroup given on the command line, or the pods' cgroup of this node.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return match statfs(path) {
            Ok(stat) if stat.filesystem_type() == CGROUP2_SUPER_MAGIC && path.is_dir() => {
                Ok(path.to_owned())
            }
            Ok(_) => bail!(
                "{} is not a directory in a cgroup2 mount; pass one to --cgroup",
                path.display()
            ),
            Err(errno) => Err(std::io::Error::from(errno))
                .with_context(|| format!("open cgroup {}", path.display())),
        };
    }
    Ok(narrowest(mount()?))
}

/// Of the cgroups that kubelet may use, the one in which pods run. A node whose cgroup driver was changed has several, and
/// until it is drained or starts again pods may run in more than one: then it is the root. Before the first pod runs, the
/// first that has any, or that exists.
fn narrowest(root: PathBuf) -> PathBuf {
    let all = POD_CGROUPS.iter().map(|name| root.join(name));
    let there: Vec<PathBuf> = all.filter(|path| path.is_dir()).collect();
    let in_use = there
        .iter()
        .filter(|path| holds_pods(path, QOS_LEVELS, is_populated));
    let in_use: Vec<&PathBuf> = in_use.collect();
    match *in_use {
        [] => {
            let used = there
                .iter()
                .find(|path| holds_pods(path, QOS_LEVELS, |_| true));
            used.or(there.first()).cloned().unwrap_or(root)
        }
        // Such as one of kubelet's option --cgroup-root.
        [one] if has_pods_outside(&root, one) => root,
        [one] => one.clone(),
        _ => root,
    }
}

/// Whether pods run in another cgroup than this one.
fn has_pods_outside(root: &Path, cgroup: &Path) -> bool {
    let pods = of_pods_below(root);
    let mut outside = pods.values().filter(|pod| !pod.starts_with(cgroup));
    outside.any(|pod| is_populated(pod))
}

/// Pods are in the cgroup itself or in that of their quality of service.
const QOS_LEVELS: usize = 1;

fn holds_pods(cgroup: &Path, levels: usize, counts: fn(&Path) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(cgroup) else {
        return false;
    };
    let directories = entries.flatten().filter(|it| it.path().is_dir());
    directories.into_iter().any(|entry| {
        let is_pod = entry.file_name().to_str().and_then(uid_of_pod).is_some();
        is_pod && counts(&entry.path())
            || levels > 0 && holds_pods(&entry.path(), levels - 1, counts)
    })
}

/// Whether processes are in a cgroup or below it.
fn is_populated(cgroup: &Path) -> bool {
    let events = fs::read_to_string(cgroup.join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// The UID of the pod that a cgroup is named after.
///
/// Kubelet names a pod's cgroup `pod<uid>` (cgroupfs driver) or
/// `kubepods-burstable-pod<uid with _ for ->.slice` (systemd driver; `kubelet-` before it in kind).
#[must_use]
pub fn uid_of_pod(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let start = name.rfind("pod")?;
    let own_word = start == 0 || name.as_bytes()[start - 1] == b'-';
    let uid = name[start + "pod".len()..].replace('_', "-");
    (own_word && is_uid(&uid)).then_some(uid)
}

/// A UUID, or the hash that static pods have.
fn is_uid(text: &str) -> bool {
    const UUID: usize = 36;
    const HASH: usize = 32;
    matches!(text.len(), UUID | HASH) && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

/// Levels from the cgroup that the hooks are attached to down to a pod's: kubelet's own, where it is nested,
/// the one of all pods, that of the quality of service.
const LEVELS: usize = 4;
/// How many cgroups of other names may be above kubelet's: `--cgroup-root`, or the container that a nested node is.
const OTHER_LEVELS: usize = 2;

/// The cgroups that kubelet made for pods, by UID, below one that holds all pods.
#[must_use]
pub fn of_pods_below(root: &Path) -> HashMap<String, PathBuf> {
    let mut found = HashMap::new();
    add_below(root, LEVELS, 0, &mut found);
    found
}

/// The same below every mount of cgroups: on hybrid hosts processes may be in version 1 only, and `--cgroup` may name
/// one that does not hold all pods.
#[must_use]
pub fn of_pods_anywhere() -> HashMap<String, PathBuf> {
    static MOUNTS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let mut found = HashMap::new();
    for mount in MOUNTS.get_or_init(all_mounts) {
        add_below(mount, LEVELS + OTHER_LEVELS, OTHER_LEVELS, &mut found);
    }
    found
}

fn all_mounts() -> Vec<PathBuf> {
    let own = procfs::process::Process::myself().and_then(|own| own.mountinfo());
    let mounts = own.into_iter().flatten();
    let cgroups = mounts.filter(|mount| matches!(&*mount.fs_type, "cgroup" | "cgroup2"));
    cgroups.map(|mount| mount.mount_point).collect()
}

/// Of the `levels` below a cgroup the first `others` may have any name.
fn add_below(cgroup: &Path, levels: usize, others: usize, found: &mut HashMap<String, PathBuf>) {
    // One that goes away meanwhile holds nothing.
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        match uid_of_pod(name) {
            Some(uid) => {
                found.entry(uid).or_insert_with(|| entry.path());
            }
            None if levels > 0 && (others > 0 || may_hold_pods(name)) => {
                let path = entry.path();
                add_below(&path, levels - 1, others.saturating_sub(1), found);
            }
            None => {}
        }
    }
}

/// Whether a cgroup of this name may hold pods' cgroups: kubelet's own, and those of its QoS classes.
#[must_use]
pub fn may_hold_pods(name: &str) -> bool {
    name.contains("kube") || matches!(name, "burstable" | "besteffort" | "guaranteed")
}

/// A cgroup's id, as links report it: the inode of its directory.
pub fn id(cgroup: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(cgroup).with_context(|| format!("stat {}", cgroup.display()))?;
    Ok(meta.ino())
}

/// Whether a cgroup that was known is there no more. kubelet removes a pod's before the pod's object, when nothing runs in
/// it.
#[must_use]
pub fn is_gone(cgroup: &Path) -> bool {
    cgroup.try_exists().is_ok_and(|exists| !exists)
}

#[cfg(test)]
mod tests;
