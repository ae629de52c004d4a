//! Paths of pins: `<bpffs>/sidetrack/v<layout>/{maps,links,pods/<netns cookie>}`.
//!
//! Invariant: the process that holds [`Lock`] owns everything below `<bpffs>/sidetrack`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};
use sidetrack_common::{LAYOUT_VERSION, names};

use super::layouts;

/// Where nodes have their bpffs.
const USUAL: &str = "/sys/fs/bpf";

/// The pin directory of one bpffs mount.
#[derive(Clone, Debug)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// For a bpffs mount point, or a directory whose `sidetrack` is a directory of a bpffs: a container gets
    /// no more of the node's. Fails for other directories.
    pub fn new(bpffs: &Path) -> Result<Self> {
        let root = bpffs.join(names::PIN_ROOT);
        let is_bpffs =
            |path: &Path| statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
        ensure!(
            is_bpffs(bpffs) || is_bpffs(&root),
            "{} is not a bpffs: pass the mount point of one with --bpffs PATH; `mount -t bpf bpf {USUAL}` mounts the usual one",
            bpffs.display()
        );
        Ok(Self { root })
    }

    /// A directory of its own in which an agent's first steps can be tried: where an agent would make its own, or
    /// beside what is there.
    pub(super) fn trial(&self) -> Self {
        let is_there = self.root.symlink_metadata().is_ok();
        let beside = if is_there { None } else { self.root.parent() };
        let name = format!("{}{}", Self::trial_prefix(), std::process::id());
        Self {
            root: beside.unwrap_or(&self.root).join(name),
        }
    }

    fn trial_prefix() -> String {
        format!("{}-doctor-", names::PIN_ROOT)
    }

    /// Trials whose process was killed: no process has their lock. With what is pinned in them they take memory.
    pub(super) fn abandoned_trials(&self) -> Vec<(Self, Lock)> {
        let dirs = [self.root.parent(), Some(self.root.as_path())];
        let entries = dirs.into_iter().flatten().flat_map(fs::read_dir);
        let entries = entries.flatten().flatten();
        let trials = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_string_lossy().starts_with(&Self::trial_prefix())
        });
        trials
            .filter_map(|entry| {
                let trial = Self { root: entry.path() };
                let lock = trial.try_lock().ok()??;
                Some((trial, lock))
            })
            .collect()
    }

    /// `<bpffs>/sidetrack`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of this layout.
    pub(super) fn version(&self) -> PathBuf {
        self.root.join(format!("v{LAYOUT_VERSION}"))
    }

    /// Whether an agent has pinned anything of this layout, as far as is known.
    pub(super) fn may_have_pins(&self) -> bool {
        layouts::has_pins(&self.version()).unwrap_or(true)
    }

    /// Whether nothing is pinned, of no layout.
    pub fn is_empty(&self) -> bool {
        fs::read_dir(&self.root).map_or(true, |mut entries| entries.next().is_none())
    }

    /// A map.
    pub fn map(&self, name: &str) -> PathBuf {
        self.version().join("maps").join(name)
    }

    /// A cgroup hook's link.
    pub fn link(&self, hook: &str) -> PathBuf {
        self.version().join("links").join(hook)
    }

    /// The directory of the pods' links.
    pub fn pods(&self) -> PathBuf {
        self.version().join("pods")
    }

    /// The directory of one pod's links.
    pub fn pod_dir(&self, netns: u64) -> PathBuf {
        self.pods().join(netns.to_string())
    }

    /// A pod's sk_lookup link.
    pub fn pod_link(&self, netns: u64) -> PathBuf {
        self.pod_dir(netns).join("sk_lookup")
    }

    /// The link of the connection callbacks to a pod's own cgroup.
    pub fn pod_callbacks(&self, netns: u64) -> PathBuf {
        self.pod_dir(netns).join(super::hooks::CALLBACKS)
    }

    /// The link of the acceleration callbacks to a pod's own cgroup.
    pub fn pod_acceleration(&self, netns: u64) -> PathBuf {
        self.pod_dir(netns).join("accelerate")
    }

    /// Creates the directories and locks them; fails if there are pins of a newer build.
    pub fn lock(&self) -> Result<Lock> {
        layouts::refuse_other(&self.root)?;
        for dir in [
            self.version().join("maps"),
            self.version().join("links"),
            self.pods(),
        ] {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        self.try_lock()?.with_context(|| {
            format!(
                "another sidetrack agent uses {}: stop it first, or give this one its own with --bpffs PATH",
                self.root.display()
            )
        })
    }

    /// Locks the existing directory; `None` if an agent holds the lock.
    pub fn try_lock(&self) -> Result<Option<Lock>> {
        let root = self.root.display();
        let dir = File::open(&self.root).with_context(|| format!("open {root}"))?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Lock(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(io::Error::from(errno)).with_context(|| format!("lock {root}")),
        }
    }

    /// Cookies of the pods that have a pinned link.
    pub fn pinned_pods(&self) -> Result<Vec<u64>> {
        let dir = self.pods();
        let pods = layouts::entries(&dir).with_context(|| format!("list {}", dir.display()))?;
        let cookie = |pod: &PathBuf| pod.file_name()?.to_str()?.parse().ok();
        Ok(pods.iter().filter_map(cookie).collect())
    }
}

/// Ownership of the pin directory, until dropped or the process ends in whatever way.
#[derive(Debug)]
pub struct Lock(Flock<File>);

impl Lock {
    /// Whether the locked directory is still the one at this path.
    pub fn is_on(&self, root: &Path) -> bool {
        let locked = self.0.metadata().map(|meta| (meta.dev(), meta.ino()));
        let current = fs::metadata(root).map(|meta| (meta.dev(), meta.ino()));
        matches!((locked, current), (Ok(locked), Ok(current)) if locked == current)
    }
}
