//! Notices new pods before the API server reports them: kubelet makes a cgroup for each pod, and the
//! runtime one for each of its containers.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, Result};
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{CreateKind, RemoveKind},
};
use tokio::sync::mpsc;

use sidetrack_datapath::kernel::cgroup::{may_hold_pods, uid_of_pod};

/// The pods' cgroups, watched.
#[derive(Debug)]
pub struct PodCgroups {
    watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<notify::Event>,
    by_uid: HashMap<String, PathBuf>,
    has_gaps: Arc<AtomicBool>,
}

impl PodCgroups {
    /// Watches the cgroup that holds all pods, or one above it.
    ///
    /// # Errors
    /// If the cgroup cannot be watched.
    pub fn new(root: &Path) -> Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let has_gaps = Arc::new(AtomicBool::new(false));
        let gaps = Arc::clone(&has_gaps);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            match event {
                Ok(event)
                    if matches!(
                        event.kind,
                        EventKind::Create(CreateKind::Folder)
                            | EventKind::Remove(RemoveKind::Folder)
                    ) =>
                {
                    let _ = sender.send(event);
                }
                // The kernel's queue was full, for one.
                Ok(event) if event.need_rescan() => gaps.store(true, Relaxed),
                Ok(_) => {}
                Err(_) => gaps.store(true, Relaxed),
            }
        })
        .context("set up inotify")?;
        let mut this = Self {
            watcher,
            events,
            by_uid: HashMap::new(),
            has_gaps,
        };
        this.watch(root)
            .with_context(|| format!("watch {}", root.display()))?;
        Ok(this)
    }

    /// Waits for a new cgroup of a pod or of one of its containers, and returns the pod's UID. Cancel
    /// safe.
    pub async fn appeared(&mut self) -> String {
        loop {
            let Some(event) = self.events.recv().await else {
                return std::future::pending().await;
            };
            for path in event.paths {
                if let Some(uid) = self.update(&path, event.kind.is_create()) {
                    return uid;
                }
            }
        }
    }

    /// Whether cgroups may have been missed: another watch has to take its place.
    #[must_use]
    pub fn has_gaps(&self) -> bool {
        self.has_gaps.load(Relaxed)
    }

    /// The cgroup of a pod, if it has been seen.
    #[must_use]
    pub fn of(&self, uid: &str) -> Option<&Path> {
        self.by_uid.get(uid).map(PathBuf::as_path)
    }

    fn update(&mut self, path: &Path, made: bool) -> Option<String> {
        let above = path.parent().and_then(uid_of);
        if above.is_some() {
            return above.filter(|_| made);
        }
        let uid = uid_of(path);
        match &uid {
            Some(uid) if made => {
                self.by_uid.insert(uid.clone(), path.to_owned());
            }
            Some(uid) => {
                self.by_uid.remove(uid);
                return None;
            }
            None => {}
        }
        if made
            && (uid.is_some()
                || path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .is_some_and(may_hold_pods))
        {
            let inside = self.watch(path);
            // It may be gone by now.
            if inside.is_err() && path.is_dir() {
                self.has_gaps.store(true, Relaxed);
            }
            return uid.or(inside.ok().flatten());
        }
        uid
    }

    /// Watches a cgroup, and reads what it already holds, which causes no event. Returns a pod found
    /// there.
    fn watch(&mut self, path: &Path) -> Result<Option<String>> {
        self.watcher.watch(path, RecursiveMode::NonRecursive)?;
        if uid_of(path).is_some() {
            return Ok(None);
        }
        let mut found = None;
        for entry in fs::read_dir(path)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found = self.update(&entry.path(), true).or(found);
            }
        }
        Ok(found)
    }
}

/// The pod named by a cgroup.
fn uid_of(path: &Path) -> Option<String> {
    uid_of_pod(path.file_name()?.to_str()?)
}
