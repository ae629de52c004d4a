//! Files that others read at any time.

use std::{
    fs::{self, File, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result};

/// Writes a file aside and renames it into place. The name aside has no extension that a runtime looks
/// for.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // One name for all who write it: what is left behind is written over.
    let aside = path.with_file_name(format!(".{name}.sidetrack-new"));
    let written = write(&aside, content, mode).and_then(|()| fs::rename(&aside, path));
    written
        .inspect_err(|_| {
            let _ = fs::remove_file(&aside);
        })
        .with_context(|| format!("write {}", path.display()))
}

fn write(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    // A node may lose its power at any time, and without a network configuration it starts nothing.
    file.sync_all()
}

/// The mode of a file that is about to be replaced.
pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |meta| meta.permissions().mode() & 0o777)
}

/// Whether a runtime can start it.
pub fn is_executable(path: &Path) -> bool {
    mode(path) & 0o111 == 0o111
}
