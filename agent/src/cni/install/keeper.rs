//! Keeps the plugin installed while the agent runs: other programs write the same configuration.

use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{Installation, Work};
use crate::cni::credentials::Credentials;

/// How long after a failure it is tried again although no file has changed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// So many repairs within [`CONTESTED`] are no coincidence: another program undoes them.
const REPAIRS: usize = 10;
const CONTESTED: Duration = Duration::from_mins(1);

/// Repairs an installation.
#[derive(Debug)]
pub struct Keeper {
    installation: Installation,
    /// The files as they were at the last check.
    seen: Option<Vec<FileState>>,
    problem: Option<String>,
    /// Mounts that were once what the node has there.
    current: Vec<PathBuf>,
    /// When to try again after a failure.
    retry_at: Instant,
    /// The latest repairs, at most [`REPAIRS`].
    repaired: VecDeque<Instant>,
}

/// Differs when another program has written the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileState {
    path: PathBuf,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Keeper {
    /// For an installation; [`Keeper::turn`] does the work.
    #[must_use]
    pub fn new(installation: Installation) -> Self {
        Self {
            installation,
            seen: None,
            problem: None,
            current: Vec::new(),
            retry_at: Instant::now(),
            repaired: VecDeque::new(),
        }
    }

    /// Repairs the installation if a file has changed; to be called about twice a second. Returns what was done, in words.
    pub fn turn(&mut self) -> Vec<String> {
        let now = self.file_states();
        let due = self.problem.is_some() && self.retry_at <= Instant::now();
        if self.seen.as_ref() == Some(&now) && !due {
            return Vec::new();
        }
        let Work { done, problem } = self.installation.install();
        if !done.is_empty() {
            self.repaired.truncate(REPAIRS - 1);
            self.repaired.push_front(Instant::now());
        }
        let problem = problem.map(|error| format!("CNI plugin: {error:#}"));
        self.problem = problem.or_else(|| self.contest());
        self.retry_at = Instant::now() + RETRY_INTERVAL;
        // After a write the files are checked once more: another program may write at the same time.
        self.seen = done.is_empty().then_some(now);
        done
    }

    /// That another program keeps undoing what is done here.
    fn contest(&self) -> Option<String> {
        let first = self.repaired.get(REPAIRS - 1)?;
        let dir = self.installation.conf_dir.display();
        (first.elapsed() < CONTESTED).then(|| {
            format!(
                "CNI plugin: another program changes {dir} again and again, and pods that start meanwhile have no plugin: have it leave other configurations alone (Cilium: cni.exclusive=false)"
            )
        })
    }

    /// Why only another agent can maintain the installation: a restart mounts the directories anew. What has never been the
    /// node's directory is no reason, because it would not be after a restart either.
    pub fn obsolete(&mut self) -> Option<String> {
        for mount in &self.installation.mounts {
            let (is_current, was_current) =
                (mount.is_current(), self.current.contains(&mount.seen));
            if is_current == Some(false) && was_current {
                let path = mount.on_node.display();
                return Some(format!(
                    "CNI plugin: the node has another directory {path} than when this agent started: the next one uses that"
                ));
            }
            if is_current == Some(true) && !was_current {
                self.current.push(mount.seen.clone());
            }
        }
        None
    }

    /// Whether everything was in place at the last check.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.seen.is_some() && self.problem.is_none()
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    pub(super) fn file_states(&self) -> Vec<FileState> {
        let configurations = self.installation.configurations().unwrap_or_default();
        let all = configurations
            .into_iter()
            .chain([self.installation.binary(), self.installation.kubeconfig()])
            .chain(
                self.installation
                    .credentials
                    .iter()
                    .flat_map(Credentials::files),
            );
        all.filter_map(|path| {
            let meta = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path));
            let meta = meta.ok()?;
            Some(FileState {
                path,
                inode: meta.ino(),
                size: meta.size(),
                changed: (meta.ctime(), meta.ctime_nsec()),
            })
        })
        .collect()
    }
}
