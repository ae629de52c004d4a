//! An entry of the plugin on the node of an agent that was started without the plugin's flags: they were removed
//! by a change past the chart's own check. Pods still wait for the agent when they start, so the entry stays
//! until sidetrack is uninstalled, and is reported meanwhile.
//!
//! The agent's container has no directory of the node mounted for this. It looks through the node's first
//! process, as it does for the namespaces of sandboxes.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{Entries, Work, remove_entries};

/// Time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Looks for entries that ask this agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmaintained {
    /// The directory of network configurations as the node sees it.
    on_node: PathBuf,
    /// The same directory as the agent sees it.
    conf_dir: PathBuf,
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
        let below = on_node.strip_prefix("/").unwrap_or(on_node);
        Self::seen_at(on_node, Path::new("/proc/1/root").join(below), socket)
    }

    /// The same for an agent that sees the directory at `conf_dir`.
    pub(super) fn seen_at(on_node: &Path, conf_dir: PathBuf, socket: &Path) -> Self {
        Self {
            on_node: on_node.to_owned(),
            conf_dir,
            socket: socket.to_owned(),
            looked: None,
            problem: None,
        }
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
        self.problem = match Entries::of_socket(&self.conf_dir, &self.socket) {
            Ok(entries) => entries.own.first().map(|path| self.words(path)),
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
        remove_entries(&self.conf_dir, &self.socket)
    }
}
