//! A single plugin's configuration has no room for a second plugin. A list with both replaces it, and the
//! original is kept beside the list for the removal.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{conflist::NetworkConfig, read};
use sidetrack_base::files::{self, replace};

/// The suffix of the original that a list replaced.
const SAVED: &str = ".sidetrack-saved";

/// Writes the list, and renames the original: runtimes use the first file by name. Returns what was done,
/// in words.
pub(super) fn replace_by_list(path: &Path, config: &NetworkConfig) -> Result<String> {
    let list = path.with_extension("conflist");
    // A list with the plugin in it was made from an earlier version of this file.
    if list.exists() && !has_plugin(&list) {
        bail!(
            "{} is in use, and {} is beside it: remove one of the two",
            path.display(),
            list.display()
        );
    }
    replace(&list, config.text().as_bytes(), files::mode(path))?;
    let saved = with_suffix(path, SAVED);
    fs::rename(path, &saved)
        .with_context(|| format!("rename {} to {}", path.display(), saved.display()))?;
    Ok(format!(
        "added to {}, which replaces {}",
        list.display(),
        path.display()
    ))
}

/// The original that a list replaced, if another program has written it again.
pub(super) fn rewritten(list: &Path) -> Option<(PathBuf, NetworkConfig)> {
    ["conf", "json"].into_iter().find_map(|extension| {
        let path = list.with_extension(extension);
        if path == list || !with_suffix(&path, SAVED).exists() || !has_plugin(list) {
            return None;
        }
        let config = NetworkConfig::parse(&path, &read(&path).ok()??).ok()?;
        Some((path, config))
    })
}

/// Whether it is a list with the plugin in it.
fn has_plugin(list: &Path) -> bool {
    let text = read(list).ok().flatten();
    let config = text.and_then(|text| NetworkConfig::parse(list, &text).ok());
    config.is_some_and(|config| config.has_plugin())
}

/// Another program has written the list itself: what was there before it is not to come back.
pub(super) fn discard_saved(list: &Path) -> Result<()> {
    for extension in ["conf", "json"] {
        let saved = with_suffix(&list.with_extension(extension), SAVED);
        if saved.exists() {
            fs::remove_file(&saved).with_context(|| format!("remove {}", saved.display()))?;
        }
    }
    Ok(())
}

/// Writes a configuration without the plugin, or puts the original back. Returns what was done, in words.
pub(super) fn restore(path: &Path, config: &NetworkConfig) -> Result<String> {
    for extension in ["conf", "json"] {
        let before = path.with_extension(extension);
        let saved = with_suffix(&before, SAVED);
        // The original has no room for another agent's entry.
        if saved.exists() && !config.has_plugin() {
            // A version written since then wins.
            let done = if before.exists() {
                fs::remove_file(&saved)
            } else {
                fs::rename(&saved, &before)
            };
            done.with_context(|| format!("put {} back as {}", saved.display(), before.display()))?;
            fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
            return Ok(format!(
                "removed {}, {} is back",
                path.display(),
                before.display()
            ));
        }
    }
    config.write(path)?;
    Ok(format!("removed from {}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
