//! Files that other programs read at any time: they are replaced as a whole.

use std::{
    fs::{self, File, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use anyhow::{Context as _, Result};

/// Writes a temporary file and renames it into place. Runtimes ignore the temporary name: it has no
/// extension they use.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Always the same name, so that a left-over file is overwritten.
    let temporary = path.with_file_name(format!(".{name}.sidetrack-new"));
    let written = write(&temporary, content, mode).and_then(|()| fs::rename(&temporary, path));
    written
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
        .with_context(|| format!("write {}", path.display()))
}

fn write(path: &Path, content: &[u8], mode: u32) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    // The node may lose power at any time, and without a network configuration it starts no pod.
    file.sync_all()
}

/// The mode of a file, for its replacement.
pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |meta| meta.permissions().mode() & 0o777)
}

/// Whether all users may execute a file.
pub fn is_executable(path: &Path) -> bool {
    mode(path) & 0o111 == 0o111
}
