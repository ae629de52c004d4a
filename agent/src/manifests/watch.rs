//! Tells when a directory of manifests changes.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Editors and `kubectl` write in several steps: wait this long for the rest.
const SETTLE: Duration = Duration::from_millis(50);

/// A watched directory.
#[derive(Debug)]
pub struct Watch {
    _watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<()>,
}

impl Watch {
    /// Starts watching; changes from now on are reported.
    pub fn new(path: &Path) -> Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the directory is an event too, and no change.
            if event.is_ok_and(|event| event.kind.is_access() && !is_close_after_write(&event)) {
                return;
            }
            let _ = sender.send(());
        })
        .context("set up inotify")?;
        watcher
            .watch(path, RecursiveMode::NonRecursive)
            .with_context(|| format!("watch {}", path.display()))?;
        Ok(Self {
            _watcher: watcher,
            events,
        })
    }

    /// Waits for a change, and for the end of a burst of them.
    pub async fn changed(&mut self) {
        if self.events.recv().await.is_none() {
            return std::future::pending().await;
        }
        tokio::time::sleep(SETTLE).await;
        while self.events.try_recv().is_ok() {}
    }
}

fn is_close_after_write(event: &notify::Event) -> bool {
    use notify::event::{AccessKind, AccessMode, EventKind};
    event.kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}
