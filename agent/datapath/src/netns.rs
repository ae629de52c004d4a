//! Network namespaces of pods: finding and opening them, running code inside, their cookies.

pub mod addresses;
pub mod connecting;
pub mod forward_routes;
pub mod listeners;
mod marked_routes;
pub mod netns_id;
pub mod processes;
pub mod resolv_conf;
pub mod resolver;
pub mod return_routes;
pub mod routes;
pub(crate) mod searches;
pub mod target_route;
pub mod transparent;
pub mod userns;
pub mod watch;

use std::{
    fs::{self, File, Metadata},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::{Component, Path, PathBuf},
    thread,
    time::Duration,
};

use crate::{
    foreign_files::{self, Job},
    kernel::sys,
};
use nix::{
    sched::{CloneFlags, setns},
    sys::{
        socket::{AddressFamily, SockFlag, SockType, socket},
        statfs::{FsType, statfs},
    },
};
use serde::{Deserialize, Serialize};
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
    /// It is on a file system that does not answer.
    #[error("{0} cannot be looked at: {1}")]
    Silent(PathBuf, io::Error),
    /// Anything else: the operation that failed, its object, and the cause.
    #[error("{0} {1}: {2}")]
    Io(&'static str, PathBuf, io::Error),
}

/// An open network namespace. It keeps the namespace alive: it is closed when the pod has departed, and nothing of it
/// remains in the maps.
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
        let io = |operation| move |error| NetnsError::Io(operation, path.to_owned(), error);
        let file = namespace_at(path)?;
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
        run_in(&self.file, work)
    }
}

/// The same in the node's own namespace, at a path of procfs.
///
/// # Errors
/// If it cannot be entered.
pub fn run_on_node<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    run_in(&File::open(path)?, work)
}

fn run_in<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        // The kernel may refuse a thread: a node can be full of them.
        let inside = thread::Builder::new().spawn_scoped(scope, || {
            setns(netns, CloneFlags::CLONE_NEWNET)?;
            Ok(work())
        })?;
        let done = inside.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
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

/// The inode of the namespace at a path in `/proc`.
pub fn inode_at(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.ino())
}

/// The inode of the namespace at any path.
///
/// # Errors
/// If there is none.
pub fn inode_of(path: &Path) -> Result<u64, NetnsError> {
    let meta = match of_kernel(path) {
        Some(meta) => meta,
        None => namespace_at(path)?.metadata(),
    };
    match meta {
        Ok(meta) => Ok(meta.ino()),
        Err(_) => Err(NetnsError::Missing(path.to_owned())),
    }
}

/// Whether a path leads to a namespace, as far as that can be learned without waiting.
#[must_use]
pub fn may_lead_to(path: &Path, inode: u64) -> bool {
    if let Some(meta) = of_kernel(path) {
        return meta.is_ok_and(|meta| meta.ino() == inode);
    }
    // Whether a descriptor is open can be asked without asking the file's own file system.
    let is_descriptor = path.parent().is_some_and(|dir| {
        dir.starts_with("/proc") && dir.components().count() == 4 && dir.ends_with("fd")
    });
    !is_descriptor || fs::symlink_metadata(path).is_ok()
}

/// Opens the namespace at a path. One that may be on any file system is opened by the helper.
fn namespace_at(path: &Path) -> Result<File, NetnsError> {
    /// The reconciler waits for it.
    const TIMEOUT: Duration = Duration::from_millis(100);
    let job = OpenNetns(path.to_owned());
    let opened = if of_kernel(path).is_some() {
        job.run()
    } else {
        let directory = path.parent().unwrap_or(path);
        let holder = format!("{}{}", foreign_files::NAMESPACES, directory.display());
        foreign_files::wait(&holder, &job, TIMEOUT)
    };
    let path = path.to_owned();
    match opened {
        Ok((true, Some(file))) => Ok(file.into()),
        // It was opened, and there was no room for its descriptor.
        Ok((true, None)) => {
            let error = io::Error::from_raw_os_error(libc::EMFILE);
            Err(NetnsError::Io("open", path, error))
        }
        Ok(_) => Err(NetnsError::NotNetns(path)),
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound => NetnsError::Missing(path),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => NetnsError::Silent(path, error),
            _ => NetnsError::Io("open", path, error),
        }),
    }
}

/// The file that a path leads to, if that is for the kernel's own file systems to say: of a process, or of a name of
/// iproute2's. One look at it: the agent looks at each pod's path twice a second.
fn of_kernel(path: &Path) -> Option<io::Result<Metadata>> {
    const NAMED: [&str; 2] = ["/run/netns", "/var/run/netns"];
    let mut parts = path.components().map(|part| match part {
        Component::Normal(part) => part.to_str(),
        _ => None,
    });
    let parts: [Option<&str>; 6] = std::array::from_fn(|_| parts.next().flatten());
    if let [None, Some("proc"), Some(_), Some(kind), Some(name), None] = parts
        && path.components().count() == 5
    {
        let is_netns = kind == "ns" && name == "net";
        return is_netns.then(|| fs::metadata(path));
    }
    let on_node = path
        .strip_prefix("/proc/1/root")
        .map(|below| Path::new("/").join(below));
    let on_node = on_node.as_deref().unwrap_or(path);
    let is_named = on_node.file_name().is_some()
        && NAMED
            .iter()
            .any(|dir| on_node.parent() == Some(Path::new(dir)));
    let meta = is_named.then(|| fs::symlink_metadata(path))?;
    // A link leads anywhere.
    let is_link = meta.as_ref().is_ok_and(Metadata::is_symlink);
    (!is_link).then_some(meta)
}

/// Opens a network namespace; answers whether it is a namespace.
#[derive(Debug, Serialize, Deserialize)]
pub struct OpenNetns(PathBuf);

impl Job for OpenNetns {
    const NAME: &'static str = "netns";
    type Answer = bool;

    fn run(self) -> io::Result<(bool, Option<OwnedFd>)> {
        // Checked before it is opened: opening a pipe blocks, opening a device may have any effect.
        match statfs(&self.0)?.filesystem_type() == NSFS_MAGIC {
            true => Ok((true, Some(File::open(self.0)?.into()))),
            false => Ok((false, None)),
        }
    }
}

#[cfg(test)]
mod tests;
