//! Directories of other layouts than ours under `<bpffs>/sidetrack`. What is in them was written by
//! other builds: of their maps nothing is known here, of their links what they are attached to.
//!
//! A newer layout is not touched by an agent. An older one runs beside ours until our pods are
//! enrolled; then its hooks that redirect go, and those that answer stay for the sockets that were
//! redirected under them. Every step may be repeated, so that an agent may end after any.

use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use sidetrack_common::LAYOUT_VERSION;

use super::{hooks::CGROUP_HOOKS, pins::PinError, sys};

/// The hooks that redirect; all others answer for what was redirected.
const REDIRECTING: [&str; 2] = ["connect4", "connect6"];

/// The end of the name of a pin that is not in place yet.
pub const ASIDE: &str = "_new";

/// Directories of all layouts, lowest first.
pub fn versions(root: &Path) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut versions: Vec<(u32, PathBuf)> = entries(root)?
        .into_iter()
        .filter(|path| is_dir(path))
        .filter_map(|path| Some((version(&path)?, path)))
        .collect();
    versions.sort();
    Ok(versions)
}

/// `v2` is 2, and so is no other text.
fn version(path: &Path) -> Option<u32> {
    let number = path.file_name()?.to_str()?.strip_prefix('v')?;
    let version: u32 = number.parse().ok()?;
    (version.to_string() == number).then_some(version)
}

/// Fails if a newer build has left something: what its rows say cannot be known.
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
pub struct Earlier {
    /// Its number.
    pub version: u32,
    dir: PathBuf,
}

impl Earlier {
    /// All there are.
    pub fn all(root: &Path) -> io::Result<Vec<Self>> {
        let versions = versions(root)?.into_iter();
        let earlier = versions.filter(|(version, _)| *version < LAYOUT_VERSION);
        Ok(earlier
            .map(|(version, dir)| Self { version, dir })
            .collect())
    }

    /// Whether it still redirects anything.
    pub fn redirects(&self) -> bool {
        let links = self.dir.join("links");
        REDIRECTING.iter().any(|hook| links.join(hook).exists())
            || self.pods().iter().any(|(_, dir)| has_pins(dir))
    }

    /// Its pods whose network namespace is alive: cookie and inode.
    pub fn judged(&self) -> Vec<(u64, u64)> {
        let alive = |(cookie, dir): (u64, PathBuf)| {
            let link = sys::open_pin(&dir.join("sk_lookup")).ok()?;
            let inode = sys::link_netns(link.as_fd()).ok()?;
            (inode != 0).then_some((cookie, inode))
        };
        self.pods().into_iter().filter_map(alive).collect()
    }

    /// Cookies of its pods, also after [`Earlier::retire`].
    pub fn marks(&self) -> Vec<u64> {
        self.pods().into_iter().map(|(cookie, _)| cookie).collect()
    }

    fn pods(&self) -> Vec<(u64, PathBuf)> {
        let dirs = entries(&self.dir.join("pods")).unwrap_or_default();
        let cookie = |dir: &Path| dir.file_name()?.to_str()?.parse().ok();
        dirs.into_iter()
            .filter_map(|dir| Some((cookie(&dir)?, dir)))
            .collect()
    }

    /// Ids of the programs it has on cgroups.
    pub fn programs(&self) -> BTreeSet<u32> {
        let links = entries(&self.dir.join("links")).unwrap_or_default();
        let id = |path: &PathBuf| {
            let link = sys::open_pin(path).ok()?;
            Some(sys::link_info(link.as_fd()).ok()?.prog_id)
        };
        links.iter().filter_map(id).collect()
    }

    /// Removes what redirects. The pods' directories stay, as marks.
    pub fn retire(&self) -> Result<()> {
        let mut removed = Removed::default();
        remove_redirecting(&self.dir, &mut removed)?;
        for (_, dir) in self.pods() {
            for path in entries(&dir).with_context(|| format!("list {}", dir.display()))? {
                remove_pin(&path, &mut removed.links)?;
            }
        }
        Ok(())
    }

    /// Removes all of it.
    pub fn remove(&self) -> Result<Removed> {
        let mut removed = Removed::default();
        remove_versions(std::slice::from_ref(&self.dir), &mut removed)?;
        Ok(removed)
    }
}

/// What was removed, and what was not.
#[derive(Debug, Default)]
pub struct Removed {
    /// Pinned links.
    pub links: Vec<PathBuf>,
    /// Pinned maps.
    pub maps: Vec<PathBuf>,
    /// Directories of layouts.
    pub directories: Vec<PathBuf>,
    /// What nobody of us has put there.
    pub left: Vec<PathBuf>,
}

/// Removes everything of every layout.
pub fn remove_everything(root: &Path) -> Result<Removed> {
    let mut removed = Removed::default();
    let list = || format!("list {}", root.display());
    let dirs: Vec<PathBuf> = versions(root)
        .with_context(list)?
        .into_iter()
        .map(|(_, dir)| dir)
        .collect();
    remove_versions(&dirs, &mut removed)?;
    remove_empty(root, &mut removed)?;
    Ok(removed)
}

/// In an order in which connections made meanwhile are either redirected with everything that
/// belongs to it, or not at all: what redirects goes before what answers for it.
fn remove_versions(dirs: &[PathBuf], removed: &mut Removed) -> Result<()> {
    for dir in dirs {
        remove_redirecting(dir, removed)?;
    }
    for dir in dirs {
        remove_tree(&dir.join("pods"), &mut removed.links)?;
    }
    for dir in dirs {
        for hook in CGROUP_HOOKS.iter().rev() {
            remove_pin(&dir.join("links").join(hook.name), &mut removed.links)?;
        }
        remove_tree(&dir.join("links"), &mut removed.links)?;
    }
    for dir in dirs {
        remove_tree(&dir.join("maps"), &mut removed.maps)?;
        remove_empty(dir, removed)?;
    }
    Ok(())
}

fn remove_redirecting(dir: &Path, removed: &mut Removed) -> Result<()> {
    for hook in REDIRECTING.iter().rev() {
        // What is aside is attached as well.
        for name in [format!("{hook}{ASIDE}"), (*hook).to_owned()] {
            remove_pin(&dir.join("links").join(name), &mut removed.links)?;
        }
    }
    Ok(())
}

/// Removes a pin, if it is there; what a link is attached to is free at once, whoever holds it.
fn remove_pin(path: &Path, removed: &mut Vec<PathBuf>) -> Result<()> {
    if let Ok(object) = sys::open_pin(path) {
        // Fails for maps.
        let _ = sys::link_detach(object.as_fd());
    }
    match fs::remove_file(path) {
        Ok(()) => removed.push(path.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
    }
    Ok(())
}

/// Removes a directory with all that is in it.
fn remove_tree(dir: &Path, removed: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(dir).with_context(|| format!("list {}", dir.display()))? {
        if is_dir(&path) {
            remove_tree(&path, removed)?;
        } else {
            remove_pin(&path, removed)?;
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Removes a directory unless something is in it that is not ours.
fn remove_empty(dir: &Path, removed: &mut Removed) -> Result<()> {
    let strangers = entries(dir).with_context(|| format!("list {}", dir.display()))?;
    if strangers.is_empty() {
        fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))?;
        removed.directories.push(dir.to_owned());
        return Ok(());
    }
    // A directory that stays for what is in it has been named by that.
    let known = |path: &PathBuf| removed.left.iter().any(|left| left.starts_with(path));
    let left: Vec<PathBuf> = strangers.into_iter().filter(|path| !known(path)).collect();
    removed.left.extend(left);
    Ok(())
}

/// What is in a directory, by name; nothing if there is none.
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
mod tests {
    use std::path::Path;

    use super::version;

    #[test]
    fn only_plain_numbers_are_versions() {
        assert_eq!(version(Path::new("/x/v2")), Some(2));
        assert_eq!(version(Path::new("/x/v12")), Some(12));
        for name in ["v", "v02", "v+2", "v2_new", "2", "V2", "v99999999999"] {
            assert_eq!(version(&Path::new("/x").join(name)), None, "{name}");
        }
    }
}
