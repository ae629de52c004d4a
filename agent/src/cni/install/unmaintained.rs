//! An entry of the plugin on the node of an agent that was started without the plugin's flags: they were removed
//! by a change past the chart's own check. Pods still wait for the agent when they start, so the entry stays
//! until sidetrack is uninstalled, and is reported meanwhile.
//!
//! The agent's container has no directory of the node mounted for this. It looks through the node's first
//! process, as it does for the namespaces of sandboxes.

use std::{
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::{Entries, Work, open_in, remove_entries};

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Looks for entries that ask this agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmaintained {
    /// The directory of network configurations as the node sees it.
    on_node: PathBuf,
    /// Where the node's files are.
    root: PathBuf,
    /// The agent's socket.
    socket: PathBuf,
    #[serde(skip)]
    looked: Option<Instant>,
    #[serde(skip)]
    problem: Option<String>,
}

impl Unmaintained {
    /// `on_node` is the directory of network configurations, `socket` the agent's, as the node sees them.
    #[must_use]
    pub fn new(on_node: &Path, socket: &Path) -> Self {
        Self::seen_from(Path::new("/proc/1/root"), on_node, socket)
    }

    /// The same where the node's files are at `root`.
    pub(super) fn seen_from(root: &Path, on_node: &Path, socket: &Path) -> Self {
        Self {
            on_node: on_node.to_owned(),
            root: root.to_owned(),
            socket: socket.to_owned(),
            looked: None,
            problem: None,
        }
    }

    /// What `with` does with the directory, if it is there. Links on the node begin at its root.
    fn in_directory<T>(&self, with: impl FnOnce(&Path) -> Result<T>) -> Result<Option<T>> {
        let directory = match open_in(&self.root, &self.on_node) {
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            opened => opened.with_context(|| format!("open {}", self.on_node.display()))?,
        };
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        with(Path::new(&path)).map(Some)
    }

    /// Looks again if it is time; to be called about twice a second.
    pub fn turn(&mut self) {
        if self
            .looked
            .is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL)
        {
            return;
        }
        self.looked = Some(Instant::now());
        let entries = self.in_directory(|path| Entries::of_socket(path, &self.socket));
        self.problem = match entries {
            Ok(entries) => entries.and_then(|it| it.own.first().map(|path| self.words(path))),
            // Without hostPID there is nothing to look at.
            Err(error) => {
                tracing::debug!("CNI plugin: {error:#}");
                None
            }
        };
    }

    fn words(&self, path: &Path) -> String {
        let file = self.on_node.join(path.file_name().unwrap_or_default());
        format!(
            "CNI plugin: its entry is in {} of this node, but this agent was started without --cni-bin-dir and --cni-conf-dir, so the entry is not maintained. Pods still wait for this agent when they start. To keep the plugin, upgrade with cni.enabled=true and cni.remove=false; to take it away, with cni.enabled=false and cni.remove=true; an uninstall removes the entry",
            file.display()
        )
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Removes the entries.
    #[must_use]
    pub fn remove(&self) -> Work {
        let remove = |path: &Path| {
            let mut work = remove_entries(path, &self.socket);
            let (seen, on_node) = (
                path.display().to_string(),
                self.on_node.display().to_string(),
            );
            for done in &mut work.done {
                *done = done.replace(&seen, &on_node);
            }
            let problem = work.problem.take();
            work.problem = problem.map(|it| anyhow!(format!("{it:#}").replace(&seen, &on_node)));
            Ok(work)
        };
        match self.in_directory(remove) {
            Ok(removed) => removed.unwrap_or_default(),
            Err(problem) => Work {
                problem: Some(problem),
                ..Work::default()
            },
        }
    }
}
