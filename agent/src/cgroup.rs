//! Finds the cgroup to attach to: the narrowest that holds all pods.

use std::path::{Path, PathBuf};

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
pub fn mount() -> Result<PathBuf> {
    let mounts = procfs::mounts().context("read /proc/mounts")?;
    mounts
        .into_iter()
        .find(|mount| mount.fs_vfstype == "cgroup2")
        .map(|mount| PathBuf::from(mount.fs_file))
        .context(
            "no cgroup2 is mounted: run `mount -t cgroup2 none /sys/fs/cgroup/unified` (create the directory first), or pass --cgroup PATH",
        )
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
