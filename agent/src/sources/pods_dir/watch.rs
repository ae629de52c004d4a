//! Watches a directory of manifests.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tracing::warn;

/// Editors and `kubectl` write in several steps: wait this long for the rest.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// A watched directory.
#[derive(Debug)]
pub(super) struct Watch {
    /// Without one the directory is read each time: containers of root's may hold all inotify instances of the node.
    watcher: Option<RecommendedWatcher>,
    path: PathBuf,
    inode: Option<u64>,
    removed: Arc<AtomicBool>,
    events: mpsc::Receiver<()>,
}

impl Watch {
    /// Starts watching; changes from now on are reported.
    pub(super) fn new(path: &Path) -> Self {
        // One event that waits stands for all.
        let (sender, events) = mpsc::sync_channel(1);
        let removed = Arc::new(AtomicBool::new(false));
        let (own, was_removed) = (path.to_owned(), Arc::clone(&removed));
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
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
                let _ = sender.try_send(());
            }
        })
        .and_then(|mut watcher| {
            watcher.watch(path, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let watcher = watcher.inspect_err(|error| {
            let path = path.display();
            warn!("{path} cannot be watched, so it is read twice a second: {error}");
        });
        Self {
            watcher: watcher.ok(),
            path: path.to_owned(),
            inode: inode_of(path),
            removed,
            events,
        }
    }

    /// Watches the directory that is at the path now.
    pub(super) fn renew(&mut self) {
        *self = Self::new(&self.path);
    }

    /// Whether the watched directory has been replaced by another one. The new one may have the old
    /// inode number.
    pub(super) fn is_outdated(&self) -> bool {
        let now = inode_of(&self.path);
        now.is_some() && (now != self.inode || self.removed.load(Ordering::Relaxed))
    }

    /// Waits for a change, and for the end of a burst of changes; whether there was one in that time.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        if self.watcher.is_none() {
            thread::sleep(timeout);
            return true;
        }
        let changed = self.events.recv_timeout(timeout).is_ok();
        if changed {
            thread::sleep(SETTLE_INTERVAL);
            self.has_event();
        }
        changed
    }

    /// Whether there was a change since the last call.
    pub(super) fn has_event(&self) -> bool {
        self.events.try_recv().is_ok()
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

fn is_close_after_write(event: &notify::Event) -> bool {
    use notify::event::{AccessKind, AccessMode, EventKind};
    event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}
