//! Directories of other layouts under `<bpffs>/sidetrack`. Other builds wrote what is in them: the targets of
//! their links are known here, and of the content of their maps only one flag of the pods.
//!
//! The directory of a newer layout makes the agent refuse to start. An older one runs beside the current
//! one until all pods are enrolled. Then its hooks that redirect are removed; those that report original
//! addresses stay for the sockets that were redirected under them. Every step may be repeated, so that an
//! agent may end after any.

mod removal;

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sidetrack_common::{
    LAYOUT_VERSION, names,
    pod::{POD_ADDED_SELF_V6, Pod},
};

pub use self::removal::{Removed, list_everything, remove_everything};
use self::removal::{remove_pin, remove_redirecting, remove_versions};
use super::{hooks::redirecting, pins::PinError, sys, table::Table};

/// The suffix of a pin that is not yet renamed to its final name.
pub const ASIDE: &str = "_new";

/// Numbers and directories of all layouts, lowest first.
pub fn versions(root: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut versions: Vec<(u32, PathBuf)> = entries(root)?
        .into_iter()
        .filter(|path| is_dir(path))
        .filter_map(|path| Some((version(&path)?, path)))
        .collect();
    versions.sort();
    Ok(versions)
}

/// The layout's number: 2 for `v2`, `None` for all other spellings.
fn version(path: &Path) -> Option<u32> {
    let number = path.file_name()?.to_str()?.strip_prefix('v')?;
    let version: u32 = number.parse().ok()?;
    (version.to_string() == number).then_some(version)
}

/// Fails if a newer build has left pins: this build cannot read its rows.
pub fn refuse_newer(root: &Path) -> Result<(), PinError> {
    let versions = versions(root).map_err(super::pins::context("list", root))?;
    let newer = versions
        .into_iter()
        .rev()
        .find(|(version, dir)| *version > LAYOUT_VERSION && has_pins(dir));
    match newer {
        Some((version, path)) => Err(PinError::Newer { version, path }),
        None => Ok(()),
    }
}

/// An older layout.
#[derive(Debug)]
pub struct OldLayout {
    /// Its number.
    pub version: u32,
    dir: PathBuf,
}

impl OldLayout {
    /// All old layouts, lowest first.
    pub fn all(root: &Path) -> io::Result<Vec<Self>> {
        let versions = versions(root)?.into_iter();
        let old = versions.filter(|(version, _)| *version < LAYOUT_VERSION);
        Ok(old.map(|(version, dir)| Self { version, dir }).collect())
    }

    /// Whether it still redirects anything.
    pub fn redirects(&self) -> bool {
        let links = self.dir.join("links");
        redirecting().any(|hook| links.join(hook).exists())
            || self.pods().iter().any(|(_, dir)| has_pins(dir))
    }

    /// Cookie and inode of its pods whose network namespace still exists.
    pub fn live_pods(&self) -> Vec<(u64, u64)> {
        let alive = |(cookie, dir): (u64, PathBuf)| {
            let link = sys::open_pin(&dir.join("sk_lookup")).ok()?;
            let inode = sys::link_netns(link.as_fd()).ok()?;
            (inode != 0).then_some((cookie, inode))
        };
        self.pods().into_iter().filter_map(alive).collect()
    }

    /// Cookies of its pods, also after [`OldLayout::stop_redirecting`].
    pub fn pod_cookies(&self) -> Vec<u64> {
        self.pods().into_iter().map(|(cookie, _)| cookie).collect()
    }

    /// Whether its agent added `::6` to a pod's lo. Whoever releases the pod has to remove it.
    pub fn added_self_v6(&self, cookie: u64) -> bool {
        let pods = sys::open_pin(&self.dir.join("maps").join(names::POD_BY_NETNS));
        // Rows of another size are of a build that this one does not replace.
        let row = pods
            .and_then(Table::<u64, Pod>::new)
            .and_then(|pods| pods.get(&cookie));
        row.is_ok_and(|row| row.is_some_and(|row| row.flags & POD_ADDED_SELF_V6 != 0))
    }

    fn pods(&self) -> Vec<(u64, PathBuf)> {
        let dirs = entries(&self.dir.join("pods")).unwrap_or_default();
        let cookie = |dir: &Path| dir.file_name()?.to_str()?.parse().ok();
        dirs.into_iter()
            .filter_map(|dir| Some((cookie(&dir)?, dir)))
            .collect()
    }

    /// Ids of the programs it has attached to cgroups.
    pub fn programs(&self) -> BTreeSet<u32> {
        let links = entries(&self.dir.join("links")).unwrap_or_default();
        let id = |path: &PathBuf| {
            let link = sys::open_pin(path).ok()?;
            Some(sys::link_info(link.as_fd()).ok()?.prog_id)
        };
        links.iter().filter_map(id).collect()
    }

    /// Removes the links that redirect. The pods' directories stay, so that their cookies remain known.
    pub fn stop_redirecting(&self) -> Result<()> {
        let mut removed = Removed::default();
        remove_redirecting(&self.dir, &mut removed)?;
        for (_, dir) in self.pods() {
            for path in entries(&dir).with_context(|| format!("list {}", dir.display()))? {
                remove_pin(&path, &mut removed.links)?;
            }
        }
        Ok(())
    }

    /// Removes everything of this layout.
    pub fn remove(&self) -> Result<Removed> {
        let mut removed = Removed::default();
        remove_versions(std::slice::from_ref(&self.dir), &mut removed)?;
        Ok(removed)
    }
}

/// The paths in a directory, sorted; empty if the directory does not exist.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<Vec<PathBuf>>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    paths.sort();
    Ok(paths)
}

fn is_dir(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

fn has_pins(dir: &Path) -> bool {
    let paths = entries(dir).unwrap_or_default();
    paths
        .iter()
        .any(|path| if is_dir(path) { has_pins(path) } else { true })
}

#[cfg(test)]
mod tests;
