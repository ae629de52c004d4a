//! A memory cgroup of its own for a process, with a limit.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use lab::ledger::{PREFIX, cgroup_root};

/// A memory cgroup. It is removed when it is dropped; its processes have to have ended.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    files: &'static Files,
}

/// Names of the files that say the same in both versions of cgroups.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    /// A value that starts the peak anew.
    reset: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    reset: "0",
};
const V2: Files = Files {
    limit: "memory.max",
    peak: "memory.peak",
    reset: "0",
};

impl Memory {
    /// With a limit in bytes; `None` if this machine has no memory controller.
    pub fn new(name: &str, limit: u64) -> Result<Option<Self>> {
        let name = format!("{PREFIX}{}-{name}", std::process::id());
        let unified = cgroup_root()?;
        let (parent, files) = if PathBuf::from("/sys/fs/cgroup/memory/cgroup.procs").exists() {
            (PathBuf::from("/sys/fs/cgroup/memory"), &V1)
        } else if unified.join("memory.max").exists() || unified.join("memory.stat").exists() {
            (unified, &V2)
        } else {
            return Ok(None);
        };
        let path = parent.join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        let this = Self { path, files };
        fs::write(this.path.join(files.limit), limit.to_string())
            .with_context(|| format!("limit {}", this.path.display()))?;
        Ok(Some(this))
    }

    /// Where a process writes 0 to enter.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// The most memory it has had since the last call, in bytes; kernel memory, the maps included.
    pub fn take_peak(&self) -> Result<u64> {
        let path = self.path.join(self.files.peak);
        let peak = fs::read_to_string(&path)?.trim().parse()?;
        fs::write(&path, self.files.reset)?;
        Ok(peak)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        lab::ledger::remove_cgroup(&self.path);
    }
}
