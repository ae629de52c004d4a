//! Network namespaces of pods: finding and opening them, running code inside, their cookies.

pub mod addresses;
pub mod connecting;
pub mod forward_routes;
pub mod listeners;
mod marked_routes;
pub mod netns_id;
pub mod processes;
pub mod resolv_conf;
pub mod return_routes;
pub mod routes;
pub(crate) mod searches;
pub mod target_route;
pub mod transparent;
pub mod userns;
pub mod watch;

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    thread,
};

use crate::kernel::sys;
use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
    sys::{
        socket::{AddressFamily, SockFlag, SockType, socket},
        statfs::{FsType, statfs},
    },
};
use sidetrack_reconcile::Found;

/// Why a path is not a usable network namespace.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// The path does not exist (yet).
    #[error("network namespace {0} does not exist; the pod is enrolled as soon as it does")]
    Missing(PathBuf),
    /// No process leads to it (yet).
    #[error("no process of the pod runs on this node yet; the pod is enrolled as soon as one does")]
    NoProcess,
    /// The path is something else.
    #[error(
        "{0} is not a network namespace; annotation sidetrack.dev/netns must name one, such as /run/netns/NAME"
    )]
    NotNetns(PathBuf),
    /// The node's own namespace.
    #[error("{0} is the node's own network namespace, which is never intercepted")]
    Host(PathBuf),
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

/// An open network namespace. It keeps the namespace alive: it is closed when the pod has left, and nothing of it is left
/// in the maps.
#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
    inode: u64,
    cookie: u64,
}

/// `NSFS_MAGIC` of linux/magic.h.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

impl Netns {
    /// Opens a namespace that was found; fails if another one is at its path now.
    pub fn open_found(found: &Found) -> Result<Self, NetnsError> {
        let netns = Self::open(&found.path)?;
        match found.inode {
            Some(inode) if inode.get() != netns.inode => Err(NetnsError::NoProcess),
            _ => Ok(netns),
        }
    }

    /// Opens a namespace by path; fails unless it is a network namespace other than the node's.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let io = |operation| {
            move |error: io::Error| NetnsError::Io {
                operation,
                path: path.to_owned(),
                error,
            }
        };
        // Checked before it is opened: opening a pipe blocks, opening a device may have any effect.
        match statfs(path) {
            Ok(stat) if stat.filesystem_type() == NSFS_MAGIC => {}
            Ok(_) => return Err(NetnsError::NotNetns(path.to_owned())),
            Err(Errno::ENOENT) => return Err(NetnsError::Missing(path.to_owned())),
            Err(errno) => return Err(io("open")(errno.into())),
        }
        let file = File::open(path).map_err(io("open"))?;
        if sys::namespace_type(file.as_fd()).ok() != Some(CloneFlags::CLONE_NEWNET.bits()) {
            return Err(NetnsError::NotNetns(path.to_owned()));
        }
        let inode = file.metadata().map_err(io("stat"))?.ino();
        if host_inodes().contains(&inode) {
            return Err(NetnsError::Host(path.to_owned()));
        }
        let mut netns = Self {
            file,
            path: path.to_owned(),
            inode,
            cookie: 0,
        };
        netns.cookie = netns
            .run(|| {
                let socket = socket(
                    AddressFamily::Inet,
                    SockType::Datagram,
                    SockFlag::SOCK_CLOEXEC,
                    None,
                )?;
                sys::netns_cookie(socket.as_fd())
            })
            .and_then(|cookie| cookie)
            .map_err(io("read the cookie of"))?;
        Ok(netns)
    }

    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The namespace's inode, as /proc/PID/ns/net shows it.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The namespace's cookie: unique until the next boot.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Runs a closure on a thread inside the namespace. Sockets opened there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(&self.file, CloneFlags::CLONE_NEWNET)?;
                    Ok(work())
                })
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Inodes of the node's namespace and of the agent's own.
fn host_inodes() -> Vec<u64> {
    ["/proc/1/ns/net", "/proc/self/ns/net"]
        .iter()
        .filter_map(|path| inode_at(Path::new(path)))
        .collect()
}

/// The inode of the namespace at a path.
pub fn inode_at(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|meta| meta.ino())
}
