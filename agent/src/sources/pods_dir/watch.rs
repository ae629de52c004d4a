//! Watches a directory of manifests.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Editors and `kubectl` write in several steps: wait this long for the rest.
const SETTLE: Duration = Duration::from_millis(50);

/// A watched directory.
#[derive(Debug)]
pub struct Watch {
    _watcher: RecommendedWatcher,
    path: PathBuf,
    inode: Option<u64>,
    removed: Arc<AtomicBool>,
    settled: mpsc::UnboundedReceiver<()>,
}

impl Watch {
    /// Starts watching; changes from now on are reported.
    pub fn new(path: &Path) -> Result<Self> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let removed = Arc::new(AtomicBool::new(false));
        let (own, was_removed) = (path.to_owned(), Arc::clone(&removed));
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                if let Ok(event) = &event
                    && event.kind.is_remove()
                    && event.paths.contains(&own)
                {
                    was_removed.store(true, Ordering::Relaxed);
                }
                // Reading the directory is an event too, and no change.
                let reading =
                    |event: notify::Event| event.kind.is_access() && !is_close_after_write(&event);
                if !event.is_ok_and(reading) {
                    let _ = sender.send(());
                }
            })
            .context("set up inotify")?;
        watcher
            .watch(path, RecursiveMode::NonRecursive)
            .with_context(|| format!("watch {}", path.display()))?;
        let inode = inode_of(path);
        let (sender, settled) = mpsc::unbounded_channel();
        // In a task of its own, so that a caller of `changed` may be canceled at any time.
        tokio::spawn(async move {
            while events.recv().await.is_some() {
                tokio::time::sleep(SETTLE).await;
                while events.try_recv().is_ok() {}
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            _watcher: watcher,
            path: path.to_owned(),
            inode,
            removed,
            settled,
        })
    }

    /// Whether the watched directory has been replaced by another one. The new one may have the old
    /// inode number.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let now = inode_of(&self.path);
        now.is_some() && (now != self.inode || self.removed.load(Ordering::Relaxed))
    }

    /// Waits for a change, and for the end of a burst of changes. Cancel safe.
    pub async fn changed(&mut self) {
        if self.settled.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

fn is_close_after_write(event: &notify::Event) -> bool {
    use notify::event::{AccessKind, AccessMode, EventKind};
    event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}
