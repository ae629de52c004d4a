//! The DNS servers of a pod: those of its resolv.conf, as its first process sees it, or as iproute2 has it for a named
//! namespace.
//!
//! The file is the pod's: it may be anything, and change at any time. It is opened below the pod's root, without links
//! that lead elsewhere, and only a regular file is read, up to a limit.

use std::{
    fs::File,
    io::{self, Read as _},
    net::IpAddr,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};

use serde::{Deserialize, Serialize};

use super::inode_at;
use crate::foreign_files::Job;

/// Bytes of a file that are read; a larger one is not. resolv.conf(5) has a few hundred.
const MAX_BYTES: u64 = 64 * 1024;
/// Servers that count. Resolvers ask three.
const MAX_SERVERS: usize = 16;

/// Where a pod's file is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvConf {
    /// `/proc/PID` of a process of the pod's, if there is one.
    pub process: Option<PathBuf>,
    /// A path to the pod's network namespace.
    pub netns: PathBuf,
}

/// Reads the servers in it.
impl Job for ResolvConf {
    const NAME: &'static str = "resolv-conf";
    type Answer = Vec<IpAddr>;

    fn run(self) -> io::Result<(Vec<IpAddr>, Option<OwnedFd>)> {
        Ok((self.servers()?, None))
    }
}

impl ResolvConf {
    /// By the path to a network namespace of one of the pod's processes, `/proc/PID/ns/net`.
    #[must_use]
    pub fn new(netns: &Path, by_process: Option<&Path>) -> Self {
        let of_process = |path: &Path| path.parent()?.parent().map(Path::to_owned);
        let is_in_proc = |path: &&Path| path.starts_with("/proc") && path.ends_with("ns/net");
        let process = by_process.or(Some(netns)).filter(is_in_proc);
        Self {
            process: process.and_then(of_process),
            netns: netns.to_owned(),
        }
    }

    /// Whether it still is of a process in this network namespace.
    #[must_use]
    pub fn is_in(&self, inode: u64) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| inode_at(&process.join("ns/net")) == Some(inode))
    }

    /// The servers in the file.
    ///
    /// # Errors
    /// If there is no file, or it cannot be read.
    pub fn servers(&self) -> io::Result<Vec<IpAddr>> {
        let named = || self.named().map_or_else(|| Err(not_found()), read_named);
        let text = match &self.process {
            Some(process) if has_own_root(process) => {
                read_below(&process.join("root"), "etc/resolv.conf")?
            }
            _ => named()?,
        };
        Ok(parse(&text))
    }

    /// Whether the pod has no process whose file could be read.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.process.is_none()
    }

    /// The name of a namespace that iproute2 has made.
    fn named(&self) -> Option<&Path> {
        let dirs = ["/run/netns", "/var/run/netns"];
        let mut names = dirs
            .iter()
            .filter_map(|dir| self.netns.strip_prefix(dir).ok());
        names.find(|name| name.components().count() == 1)
    }
}

fn not_found() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "no process of the pod, and no named network namespace",
    )
}

/// Whether a process has another mount namespace than the node: those in the node's have no file of their own.
#[must_use]
pub fn has_own_root(process: &Path) -> bool {
    let own = inode_at(&process.join("ns/mnt"));
    let nodes = ["/proc/1/ns/mnt", "/proc/self/ns/mnt"].map(|path| inode_at(path.as_ref()));
    own.is_some() && !nodes.contains(&own)
}

fn read_named(name: &Path) -> io::Result<Vec<u8>> {
    let path = Path::new("etc/netns").join(name).join("resolv.conf");
    read_below(Path::new("/"), &path.to_string_lossy())
}

/// Reads a regular file below a root.
fn read_below(root: &Path, path: &str) -> io::Result<Vec<u8>> {
    let root = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(root)?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .mode(Mode::empty())
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    // Nothing happens to a file that is opened as a path: opening a pipe blocks, opening a device may have any effect.
    let found = openat2(root.as_fd(), path, how)?;
    let found = File::from(found);
    let meta = found.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if meta.size() > MAX_BYTES {
        return Err(io::Error::other("it is larger than 64 KiB"));
    }
    // Files of procfs have no size, and reading one may have any effect, or wait.
    if meta.size() == 0 {
        return Ok(Vec::new());
    }
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut text = Vec::new();
    file.take(meta.size()).read_to_end(&mut text)?;
    Ok(text)
}

/// The servers of a resolv.conf, each once.
#[must_use]
fn parse(text: &[u8]) -> Vec<IpAddr> {
    let mut servers = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else {
            continue;
        };
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("nameserver") {
            continue;
        }
        // The zone of a link-local address is no part of what packets have.
        let word = words.next().unwrap_or_default();
        let addr = word.split('%').next().unwrap_or_default();
        let Ok(addr) = addr.parse::<IpAddr>() else {
            continue;
        };
        let addr = addr.to_canonical();
        let is_new = !servers.contains(&addr);
        if is_new && !addr.is_unspecified() && servers.len() < MAX_SERVERS {
            servers.push(addr);
        }
    }
    servers
}

#[cfg(test)]
mod tests;
