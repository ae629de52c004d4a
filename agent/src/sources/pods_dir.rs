//! Pods from a directory of Pod manifests.
//!
//! A thread of its own reads the files, one at a time, and only those that have changed. So neither the reconciler nor
//! an answer to a client waits for a large file, and a small new file waits for two others at most.

mod directory;
mod linked;
mod thread;
mod watch;

use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::sync::watch as latest;

use self::{directory::Directory, thread::Waiting, watch::Watch};
pub use self::{
    directory::Stamp,
    linked::{LinkedStamp, LinkedText},
};
use sidetrack_reconcile::Listing;

/// The newest listing, or why there is none.
type Listed = Option<Result<Listing, String>>;

/// A directory of manifests, as its thread has read it.
#[derive(Debug)]
pub struct PodsDir {
    path: PathBuf,
    listed: latest::Receiver<Listed>,
    waiting: Waiting,
}

impl PodsDir {
    /// Starts to read and to watch a directory; it must exist.
    ///
    /// # Errors
    /// If it does not.
    pub fn new(path: &Path) -> Result<Self> {
        let directory = Directory::new(path)?;
        let watch = Watch::new(path);
        let (sender, listed) = latest::channel(None);
        let waiting = Waiting::default();
        thread::start(directory, watch, sender, waiting.clone())?;
        Ok(Self {
            path: path.to_owned(),
            listed,
            waiting,
        })
    }

    /// That its file system does not answer, if so.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let path = self.path.display();
        self.waiting.is_silent().then(|| {
            format!("list {path}: its file system does not answer; its pods stay as they are")
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
