//! Files of unix sockets: whether clients still find the one that was bound, and their removal.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The file of a bound socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    /// The one that is at a path now.
    ///
    /// # Errors
    /// If none is, or it cannot be looked at.
    pub fn of(path: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            device: meta.dev(),
            inode: meta.ino(),
        })
    }

    /// Whether clients still find it, as far as is known. A directory that was removed on the node, and made again, is
    /// another one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        match Self::of(&self.path) {
            Ok(found) => found == *self,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the file when it is dropped, unless another program has bound one in its place.
#[derive(Debug)]
pub struct RemoveOnDrop(pub SocketFile);

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if SocketFile::of(self.0.path()).is_ok_and(|found| found == self.0) {
            let _ = fs::remove_file(self.0.path());
        }
    }
}
