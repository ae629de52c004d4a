//! Tells when pods come into being on the node, before the API server does: kubelet makes a cgroup for
//! a pod, the runtime one for each of its containers.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{CreateKind, RemoveKind},
};
use tokio::sync::mpsc;

use crate::netns::processes::pod_uid;

/// The pods' cgroups, watched.
#[derive(Debug)]
pub struct PodCgroups {
    watcher: RecommendedWatcher,
    events: mpsc::UnboundedReceiver<notify::Event>,
    by_uid: HashMap<String, PathBuf>,
}

impl PodCgroups {
    /// Watches the cgroup that holds all pods, or one above it.
    ///
    /// # Errors
    /// If the kernel gives no watch.
    pub fn new(root: &Path) -> Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if let Ok(event) = event
                && matches!(
                    event.kind,
                    EventKind::Create(CreateKind::Folder) | EventKind::Remove(RemoveKind::Folder)
                )
            {
                let _ = sender.send(event);
            }
        })
        .context("set up inotify")?;
        let mut this = Self {
            watcher,
            events,
            by_uid: HashMap::new(),
        };
        this.watch(root)
            .with_context(|| format!("watch {}", root.display()))?;
        Ok(this)
    }

    /// Waits until a pod or one of its containers has a cgroup that it had not before; which pod. Loses
    /// nothing when given up.
    pub async fn appeared(&mut self) -> String {
        loop {
            let Some(event) = self.events.recv().await else {
                return std::future::pending().await;
            };
            for path in event.paths {
                if let Some(uid) = self.take(&path, event.kind.is_create()) {
                    return uid;
                }
            }
        }
    }

    /// The cgroup of a pod, if it has been seen.
    #[must_use]
    pub fn of(&self, uid: &str) -> Option<&Path> {
        self.by_uid.get(uid).map(PathBuf::as_path)
    }

    fn take(&mut self, path: &Path, made: bool) -> Option<String> {
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
        if made && (uid.is_some() || holds_pods(path)) {
            // It may be gone by now.
            let inside = self.watch(path).ok().flatten();
            return uid.or(inside);
        }
        uid
    }

    /// Watches a cgroup, and looks what is in it: what came before the watch is not told. A pod that
    /// was found there.
    fn watch(&mut self, path: &Path) -> Result<Option<String>> {
        self.watcher.watch(path, RecursiveMode::NonRecursive)?;
        if uid_of(path).is_some() {
            return Ok(None);
        }
        let mut found = None;
        for entry in fs::read_dir(path)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found = self.take(&entry.path(), true).or(found);
            }
        }
        Ok(found)
    }
}

/// The pod that a cgroup's own name tells.
fn uid_of(path: &Path) -> Option<String> {
    pod_uid(&format!("0::/{}", path.file_name()?.to_str()?))
}

/// Whether pods' cgroups may be directly in it: kubelet's own, and those of its classes of service.
fn holds_pods(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| {
        name.contains("kube") || matches!(name, "burstable" | "besteffort" | "guaranteed")
    })
}
