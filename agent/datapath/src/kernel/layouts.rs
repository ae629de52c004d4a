//! Directories of layouts under `<bpffs>/sidetrack`. A layout is the form of the pinned maps. Pins of another one make
//! the agent refuse to start.

mod removal;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use sidetrack_common::LAYOUT_VERSION;

pub use self::removal::{
    Removed, list_everything, remove_abandoned_trials, remove_everything, remove_own,
};

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

/// Fails if there are pins of a build with another layout: this build cannot read its rows.
pub fn refuse_other(root: &Path) -> Result<()> {
    let versions = versions(root).with_context(|| format!("list {}", root.display()))?;
    for (version, path) in versions.into_iter().rev() {
        let shown = path.display();
        if version != LAYOUT_VERSION && has_pins(&path).with_context(|| format!("list {shown}"))? {
            bail!(
                "{shown} is of another sidetrack version: this one (layout {LAYOUT_VERSION}) cannot read its maps (layout {version}). Pods stay intercepted by the attached programs: install that version again, or run `sidetrack cleanup` first. After a cleanup pods are not intercepted until an agent has enrolled them again"
            );
        }
    }
    Ok(())
}

/// The paths in a directory, sorted; empty if the directory does not exist.
pub(super) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
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

/// Whether a directory has files, or one below it.
pub(super) fn has_pins(dir: &Path) -> io::Result<bool> {
    for path in entries(dir)? {
        if !is_dir(&path) || has_pins(&path)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
