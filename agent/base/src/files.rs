//! Files that other programs read at any time: they are replaced as a whole.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Writes a temporary file and renames it into place. Runtimes ignore the temporary name: it has no
/// extension they use.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace_by(path, mode, |file| file.write_all(content))
}

/// The same with the content of another file, of which little is in memory at a time.
pub fn replace_by_copy(path: &Path, source: &mut File, mode: u32) -> Result<()> {
    replace_by(path, mode, |file| io::copy(source, file).map(drop))
}

/// The temporary file of one that is replaced. It has always the same name, so that an abandoned one is overwritten.
#[must_use]
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.sidetrack-new"))
}

fn replace_by(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<()> {
    let temporary = temporary(path);
    let written = write(&temporary, mode, content).and_then(|()| fs::rename(&temporary, path));
    written
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
        .with_context(|| format!("write {}", path.display()))
}

fn write(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // An abandoned file may be open elsewhere, or be a link. The new file has its mode from the beginning.
    let _ = fs::remove_file(path);
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    content(&mut file)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    // The node may lose power at any time, and without a network configuration it starts no pod.
    file.sync_all()
}

/// Whether two files have the same content; little of them is in memory at a time.
///
/// # Errors
/// If one cannot be read.
pub fn are_same(one: &mut File, other: &mut File) -> io::Result<bool> {
    const PART: usize = 64 << 10;
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let mut parts = (vec![0; PART], vec![0; PART]);
    loop {
        let read = one.read(&mut parts.0)?;
        if read == 0 {
            return Ok(true);
        }
        other.read_exact(&mut parts.1[..read])?;
        if parts.0[..read] != parts.1[..read] {
            return Ok(false);
        }
    }
}

/// The mode of a file, for its replacement.
pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |meta| meta.permissions().mode() & 0o777)
}

/// Whether all users may execute a file.
pub fn is_executable(path: &Path) -> bool {
    mode(path) & 0o111 == 0o111
}

#[cfg(test)]
mod tests;
