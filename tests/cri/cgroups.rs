//! The cgroups that runc makes: one below each hierarchy of cgroup v1 that is mounted, or one of
//! cgroup2 where there is nothing else. All are below a directory named as the lab's is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use lab::ledger::hierarchies;

/// The lab's directories in all hierarchies, given a path below them.
pub fn roots(parent: &str) -> Result<Vec<PathBuf>> {
    let first = parent.trim_start_matches('/').split('/').next();
    let first = first.unwrap_or_default();
    let dirs = hierarchies()?.into_iter().map(|mount| mount.join(first));
    Ok(dirs.filter(|dir| dir.exists()).collect())
}

/// Containers' cgroups, in any hierarchy; the parent's children are pods'.
pub fn of_containers(parent: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for mount in hierarchies()? {
        let pods = mount.join(parent.trim_start_matches('/'));
        found.extend(dirs_in(&pods).iter().flat_map(|pod| dirs_in(pod)));
    }
    Ok(found)
}

fn dirs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}
