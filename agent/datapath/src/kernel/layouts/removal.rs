//! Removes the pins of layouts, in an order that is safe while traffic flows.

use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{ASIDE, entries, is_dir, versions};
use crate::kernel::{
    hooks::{CGROUP_HOOKS, redirecting},
    pins::Pins,
    sys,
};

/// How long the hooks that report original addresses stay after the last connection was redirected.
const DRAIN: Duration = Duration::from_secs(1);

/// Paths that were removed, and paths that remain.
#[derive(Debug, Default)]
pub struct Removed {
    /// Pinned links.
    pub links: Vec<PathBuf>,
    /// Pinned maps.
    pub maps: Vec<PathBuf>,
    /// Directories of layouts.
    pub directories: Vec<PathBuf>,
    /// Entries sidetrack did not create.
    pub remaining: Vec<PathBuf>,
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

/// Removes everything of this build's layout.
pub fn remove_own(pins: &Pins) -> Result<()> {
    remove_versions(&[pins.version()], &mut Removed::default())
}

/// Removes what doctors made that were killed.
pub fn remove_abandoned_trials(pins: &Pins) -> Result<()> {
    for (trial, _lock) in pins.abandoned_trials() {
        remove_everything(trial.root())?;
    }
    Ok(())
}

/// What [`remove_everything`] would remove. Changes nothing.
pub fn list_everything(root: &Path) -> Result<Removed> {
    let mut found = Removed::default();
    let list = || format!("list {}", root.display());
    for (_, dir) in versions(root).with_context(list)? {
        for links in ["links", "pods"] {
            list_tree(&dir.join(links), &mut found.links)?;
        }
        list_tree(&dir.join("maps"), &mut found.maps)?;
        found.directories.push(dir);
    }
    let known = |path: &PathBuf| found.directories.contains(path);
    let all = entries(root).with_context(list)?;
    found.remaining = all.into_iter().filter(|path| !known(path)).collect();
    Ok(found)
}

/// All files below a directory.
fn list_tree(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for path in entries(dir).with_context(|| format!("list {}", dir.display()))? {
        if is_dir(&path) {
            list_tree(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Removes layouts. Hooks that redirect are removed first, so that a connection made meanwhile is either
/// redirected and has its original addresses reported, or is not redirected.
fn remove_versions(dirs: &[PathBuf], removed: &mut Removed) -> Result<()> {
    let before = removed.links.len();
    for dir in dirs {
        remove_redirecting(dir, removed)?;
        for pod in entries(&dir.join("pods")).unwrap_or_default() {
            remove_pin(&pod.join("sk_lookup"), &mut removed.links)?;
        }
    }
    if removed.links.len() > before {
        // Connections that a sidecar has accepted and not yet looked at.
        thread::sleep(DRAIN);
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
    for hook in redirecting().rev() {
        // A link whose pin has no final name yet is attached as well.
        for name in [format!("{hook}{ASIDE}"), hook.to_owned()] {
            remove_pin(&dir.join("links").join(name), &mut removed.links)?;
        }
    }
    Ok(())
}

/// Removes a pin if it exists. A link is detached at once, also if another process holds it.
fn remove_pin(path: &Path, removed: &mut Vec<PathBuf>) -> Result<()> {
    if let Ok(object) = sys::open_pin(path) {
        // Fails for maps, which have nothing to detach.
        let _ = sys::link_detach(object.as_fd());
    }
    match fs::remove_file(path) {
        Ok(()) => removed.push(path.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
    }
    Ok(())
}

/// Removes a directory with everything in it.
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

/// Removes a directory unless it has entries sidetrack did not create.
fn remove_empty(dir: &Path, removed: &mut Removed) -> Result<()> {
    let foreign = entries(dir).with_context(|| format!("list {}", dir.display()))?;
    if foreign.is_empty() {
        match fs::remove_dir(dir) {
            Ok(()) => removed.directories.push(dir.to_owned()),
            // A mount point, in a container that has only this directory of the node's bpffs. Below a root file system
            // that is read-only, as the DaemonSet's is, the kernel says that first.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ResourceBusy | io::ErrorKind::ReadOnlyFilesystem
                ) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("remove {}", dir.display()));
            }
        }
        return Ok(());
    }
    // A directory that stays because of a foreign entry is not listed besides that entry.
    let known = |path: &PathBuf| removed.remaining.iter().any(|it| it.starts_with(path));
    let remaining: Vec<PathBuf> = foreign.into_iter().filter(|path| !known(path)).collect();
    removed.remaining.extend(remaining);
    Ok(())
}
