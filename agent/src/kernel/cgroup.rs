//! Finds the cgroup to attach to: the narrowest that holds all pods.

use std::{
    fs,
    path::{Path, PathBuf},
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
    let root = mount()?;
    Ok(POD_CGROUPS
        .iter()
        .map(|name| root.join(name))
        .find(|path| path.is_dir())
        .unwrap_or(root))
}

/// A cgroup's id, as links report it: the inode of its directory.
pub fn id(cgroup: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = fs::metadata(cgroup).with_context(|| format!("stat {}", cgroup.display()))?;
    Ok(meta.ino())
}

#[cfg(test)]
mod tests {
    use super::above;

    #[test]
    fn higher_mounts_sort_first() {
        assert!(above("/../../..") > above("/"));
        assert!(above("/") > above("/kubepods.slice"));
    }
}
