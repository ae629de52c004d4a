//! Users of pods that number them on their own (`hostUsers: false`). Netfilter reads the ids of an
//! owner rule in the user namespace that owns the network namespace (`owner_mt` in
//! net/netfilter/xt_owner.c); so do we.

use std::{
    fmt, fs,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
};

use anyhow::{Context as _, Result};
use nix::{
    sched::{CloneFlags, setns},
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::waitpid,
    },
    unistd::{ForkResult, fork, pause, pipe},
};

use super::Netns;
use crate::bpf::sys;

/// An id that a pod's user namespace does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {id} does not exist in the pod's user namespace; the sidecar must run as one that does"
)]
pub struct UnknownId {
    kind: &'static str,
    id: u32,
}

/// Ids of a user namespace in the node's numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    uids: Vec<Extent>,
    gids: Vec<Extent>,
}

/// A line of `/proc/PID/uid_map` (user_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMaps {
    /// The node's own numbering.
    #[must_use]
    pub fn of_node() -> Self {
        let all = vec![Extent {
            inside: 0,
            outside: 0,
            count: u32::MAX,
        }];
        Self {
            uids: all.clone(),
            gids: all,
        }
    }

    /// The numbering in the user namespace that owns a network namespace.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(netns: &Netns) -> Result<Self> {
        let owner = sys::owning_user_namespace(netns.as_fd())
            .context("find the user namespace that owns the pod's network namespace")?;
        let owner = File::from(owner);
        let inode = owner.metadata().context("stat a user namespace")?.ino();
        if super::inode_at("/proc/self/ns/user".as_ref()) == Some(inode) {
            return Ok(Self::of_node());
        }
        within(owner.into()).context("read the ids of the pod's user namespace")
    }

    /// A user's number on the node.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn uid(&self, uid: u32) -> Result<u32, UnknownId> {
        let kind = "user";
        outside(&self.uids, uid).ok_or(UnknownId { kind, id: uid })
    }

    /// A group's number on the node.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn gid(&self, gid: u32) -> Result<u32, UnknownId> {
        let kind = "group";
        outside(&self.gids, gid).ok_or(UnknownId { kind, id: gid })
    }
}

impl fmt::Display for IdMaps {
    /// The first user's number, as `0 is 100000`; nothing for the node's own numbering.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uids.first() {
            Some(first) if first.inside != first.outside => {
                write!(f, "{} is {}", first.inside, first.outside)
            }
            _ => Ok(()),
        }
    }
}

fn outside(extents: &[Extent], id: u32) -> Option<u32> {
    extents.iter().find_map(|extent| {
        let offset = id.checked_sub(extent.inside)?;
        (offset < extent.count).then(|| extent.outside.checked_add(offset))?
    })
}

/// Asks a process in the namespace, as `/proc` shows a numbering by process only. There may be none
/// (while a pod is being set up), so a child goes there for a moment.
fn within(user_namespace: OwnedFd) -> io::Result<IdMaps> {
    let (from_child, to_parent) = pipe()?;
    let parent = nix::unistd::getpid();
    // SAFETY: until it ends the child makes system calls only, on what it has inherited; it takes
    // no lock and allocates nothing.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            let _ = prctl::set_pdeathsig(Some(Signal::SIGKILL));
            // It may have ended before it was asked to take the child along.
            if nix::unistd::getppid() != parent {
                // SAFETY: ends the process, nothing else.
                unsafe { libc::_exit(1) };
            }
            let arrived = setns(&user_namespace, CloneFlags::CLONE_NEWUSER);
            let _ = File::from(to_parent).write_all(&[u8::from(arrived.is_ok())]);
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => child,
    };
    drop(to_parent);
    let mut arrived = [0];
    let maps = File::from(from_child)
        .read_exact(&mut arrived)
        .and_then(|()| match arrived {
            [1] => Ok(IdMaps {
                uids: extents(&fs::read_to_string(format!("/proc/{child}/uid_map"))?),
                gids: extents(&fs::read_to_string(format!("/proc/{child}/gid_map"))?),
            }),
            _ => Err(io::Error::other("it cannot be entered")),
        });
    kill(child, Signal::SIGKILL)?;
    waitpid(child, None)?;
    maps
}

fn extents(text: &str) -> Vec<Extent> {
    text.lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some(Extent {
                inside: numbers.next()?.ok()?,
                outside: numbers.next()?.ok()?,
                count: numbers.next()?.ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{IdMaps, extents};

    #[test]
    fn ids_are_mapped() {
        let uids = extents("         0     100000       1000\n      1337      1337          1\n");
        let maps = IdMaps {
            gids: uids.clone(),
            uids,
        };
        assert_eq!(maps.uid(0), Ok(100_000));
        assert_eq!(maps.uid(999), Ok(100_999));
        assert_eq!(maps.gid(1337), Ok(1337));
        assert!(maps.uid(1000).is_err());
        assert_eq!(IdMaps::of_node().uid(1337), Ok(1337));
        assert_eq!(maps.to_string(), "0 is 100000");
        assert_eq!(IdMaps::of_node().to_string(), "");
    }
}
