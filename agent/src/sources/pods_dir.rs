//! Pods from a directory of Pod manifests.
//!
//! A thread of its own reads the files, one at a time, and only those that have changed. So neither the reconciler nor
//! an answer to a client waits for a large file, and a small new file waits for two others at most.

mod directory;
mod files;
mod thread;
mod watch;

use std::{
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch as latest;

pub use self::files::{ListManifests, LookAt, ReadManifest, Stamp, WatchDirectory};
use sidetrack_reconcile::Listing;

/// The newest listing, or why there is none.
type Listed = Option<Result<Listing, String>>;

/// A directory of manifests, as its thread has read it.
#[derive(Debug)]
pub struct PodsDir {
    path: PathBuf,
    listed: latest::Receiver<Listed>,
}

impl PodsDir {
    /// Starts to read and to watch a directory. One whose file system does not answer is waited for.
    ///
    /// # Errors
    /// If there is no such directory.
    pub fn new(path: &Path) -> Result<Self> {
        match files::is_directory(path) {
            Ok(true) => {}
            Ok(false) => bail!(
                "{} is not a directory; pass one to --pods-dir",
                path.display()
            ),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!(
                        "open the pods directory {}; create it or pass another to --pods-dir",
                        path.display()
                    )
                });
            }
        }
        let (sender, listed) = latest::channel(None);
        thread::start(path.to_owned(), sender)?;
        Ok(Self {
            path: path.to_owned(),
            listed,
        })
    }

    /// Waits for another listing. Cancel safe.
    pub async fn changed(&mut self) {
        if self.listed.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// All pods; `None` until every file was read once.
    ///
    /// # Errors
    /// If the directory cannot be read. The pods then stay as they are.
    pub fn list(&mut self) -> Result<Option<Listing>, String> {
        let listed = self.listed.borrow_and_update().clone();
        listed.transpose().map_err(|error| {
            let path = self.path.display();
            format!("list {path}: {error}; its pods stay as they are")
        })
    }
}
