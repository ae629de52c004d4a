//! What this process made on the machine outside its own mount namespace, so that a later run can
//! remove what remains of a killed one: cgroups. Their names carry the maker's pid.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Start of the names of everything tests make.
pub const PREFIX: &str = "sidetrack-test-";

/// The cgroup2 mount.
pub fn cgroup_root() -> Result<PathBuf> {
    procfs::mounts()
        .context("read the mounts")?
        .into_iter()
        .find(|mount| mount.fs_vfstype == "cgroup2")
        .map(|mount| PathBuf::from(mount.fs_file))
        .context("no cgroup2 is mounted on this machine")
}

/// All mounts of cgroups: those of version 1 are where runc makes some.
pub fn hierarchies() -> Result<Vec<PathBuf>> {
    let mounts = procfs::mounts().context("read the mounts")?;
    let cgroups = mounts
        .into_iter()
        .filter(|mount| matches!(mount.fs_vfstype.as_str(), "cgroup" | "cgroup2"));
    Ok(cgroups.map(|mount| mount.fs_file.into()).collect())
}

/// Removes cgroups of runs that have ended.
pub fn sweep() -> Result<()> {
    for mount in hierarchies()? {
        for entry in fs::read_dir(mount)?.flatten() {
            let name = entry.file_name();
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            let pid = rest.split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(pid).exists() {
                // A process that has changed its user does not end with the one that started it.
                let _ = fs::write(entry.path().join("cgroup.kill"), "1");
                remove_cgroup(&entry.path());
            }
        }
    }
    Ok(())
}

/// Removes a cgroup and those below it.
pub fn remove_cgroup(path: &Path) {
    for child in fs::read_dir(path).into_iter().flatten().flatten() {
        if child.path().is_dir() {
            remove_cgroup(&child.path());
        }
    }
    // Processes leave a cgroup a moment after they have ended.
    for _ in 0..100 {
        if fs::remove_dir(path).is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    eprintln!("cgroup {} cannot be removed", path.display());
}
