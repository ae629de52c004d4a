//! Paths of pins: `<bpffs>/sidetrack/v<layout>/{maps,links,pods/<netns cookie>}`.
//!
//! Invariant: the process that holds [`Lock`] owns everything below `<bpffs>/sidetrack`.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};
use sidetrack_common::{LAYOUT_VERSION, names};

use super::layouts;

/// Where nodes have their bpffs.
const USUAL: &str = "/sys/fs/bpf";

/// Why the pin directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The path is not a bpffs.
    #[error(
        "{0} is not a bpffs: pass the mount point of one with --bpffs PATH; `mount -t bpf bpf {USUAL}` mounts the usual one"
    )]
    NotBpffs(PathBuf),
    /// Another agent owns it.
    #[error(
        "another sidetrack agent uses {0}: stop it first, or give this one its own with --bpffs PATH"
    )]
    InUse(PathBuf),
    /// There are pins of a build with another layout of maps.
    #[error(
        "{path} is of another sidetrack version: this one (layout {LAYOUT_VERSION}) cannot read its maps (layout {version}). Pods stay intercepted by the attached programs: install that version again, or run `sidetrack cleanup` first. After a cleanup pods are not intercepted until an agent has enrolled them again"
    )]
    OtherLayout {
        /// Its layout.
        version: u32,
        /// Where it is.
        path: PathBuf,
    },
    /// Anything else.
    #[error("{operation} {path}: {error}")]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// Its object.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// Adds operation and path to an I/O error.
pub fn context(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> PinError {
    let path = path.to_owned();
    move |error| PinError::Io {
        operation,
        path: path.clone(),
        error,
    }
}

/// The pin directory of one bpffs mount.
#[derive(Clone, Debug)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// For a bpffs mount point, or a directory whose `sidetrack` is a directory of a bpffs: a container gets
    /// no more of the node's. Fails for other directories.
    pub fn new(bpffs: &Path) -> Result<Self, PinError> {
        let root = bpffs.join(names::PIN_ROOT);
        let is_bpffs =
            |path: &Path| statfs(path).is_ok_and(|stat| stat.filesystem_type() == BPF_FS_MAGIC);
        if is_bpffs(bpffs) || is_bpffs(&root) {
            return Ok(Self { root });
        }
        Err(PinError::NotBpffs(bpffs.to_owned()))
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
    pub fn lock(&self) -> Result<Lock, PinError> {
        layouts::refuse_other(&self.root)?;
        for dir in [
            self.version().join("maps"),
            self.version().join("links"),
            self.pods(),
        ] {
            fs::create_dir_all(&dir).map_err(context("create", &dir))?;
        }
        self.try_lock()?
            .ok_or_else(|| PinError::InUse(self.root.clone()))
    }

    /// Locks the existing directory; `None` if an agent holds the lock.
    pub fn try_lock(&self) -> Result<Option<Lock>, PinError> {
        let dir = File::open(&self.root).map_err(context("open", &self.root))?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Lock(lock))),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(context("lock", &self.root)(errno.into())),
        }
    }

    /// Cookies of the pods that have a pinned link.
    pub fn pinned_pods(&self) -> Result<Vec<u64>, PinError> {
        let dir = self.pods();
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(context("list", &dir)(error)),
        };
        Ok(entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect())
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
