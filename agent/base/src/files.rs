//! Files that other programs read at any time: they are replaced as a whole.

use std::{
    fs::{self, File, Permissions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Writes a temporary file and renames it into place. Runtimes ignore the temporary name: it has no
/// extension they use.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    replace_unless(path, content, mode, || false)
}

/// The same of a file that others write, too, made from what it had: if it has changed meanwhile, it stays.
pub fn replace_unless(
    path: &Path,
    content: &[u8],
    mode: u32,
    has_changed: impl FnOnce() -> bool,
) -> Result<()> {
    replace_by(path, mode, |file| file.write_all(content), has_changed)
}

/// The same with the content of another file, of which little is in memory at a time.
pub fn replace_by_copy(path: &Path, source: &mut File, mode: u32) -> Result<()> {
    let copy = |file: &mut File| io::copy(source, file).map(drop);
    replace_by(path, mode, copy, || false)
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
    has_changed: impl FnOnce() -> bool,
) -> Result<()> {
    let temporary = temporary(path);
    let shown = || format!("write {}", path.display());
    let (mut file, inode) = create(&temporary, mode).with_context(shown)?;
    let is_own = || fs::symlink_metadata(&temporary).is_ok_and(|meta| meta.ino() == inode);
    let replace = || {
        content(&mut file)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        // The node may lose power at any time, and without a network configuration it starts no pod.
        file.sync_all()?;
        // As late as possible: what is written before takes as long as the disk.
        if has_changed() {
            return Err(io::Error::other(
                "another program has changed it meanwhile; it is read again",
            ));
        }
        if !is_own() {
            return Err(io::Error::other("another process writes it"));
        }
        fs::rename(&temporary, path)
    };
    replace()
        .inspect_err(|_| {
            if is_own() {
                let _ = fs::remove_file(&temporary);
            }
        })
        .with_context(shown)
}

/// Creates a temporary file. It is locked as long as it is open: only an abandoned one is removed.
fn create(path: &Path, mode: u32) -> io::Result<(File, u64)> {
    if let Ok(known) = File::open(path)
        && matches!(known.try_lock(), Err(TryLockError::WouldBlock))
    {
        return Err(io::Error::other("another process writes it"));
    }
    // An abandoned file may be open elsewhere, or be a link. The new file has its mode from the beginning.
    let _ = fs::remove_file(path);
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(mode).open(path)?;
    // Where the file system has no locks there is only the check before the rename.
    let _ = file.try_lock();
    let inode = file.metadata()?.ino();
    Ok((file, inode))
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
