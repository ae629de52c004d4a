//! The user namespace that owns a pod's network namespace, and its id maps.

use std::{
    fs,
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
use sidetrack_policy::ids::IdMaps;

use super::Netns;
use crate::kernel::sys;

/// The id maps of the user namespace that owns a network namespace.
///
/// # Errors
/// If it cannot be read.
pub fn id_maps(netns: &Netns) -> Result<IdMaps> {
    let owner = sys::owning_user_namespace(netns.as_fd())
        .context("find the user namespace that owns the pod's network namespace")?;
    let owner = File::from(owner);
    let inode = owner.metadata().context("stat a user namespace")?.ino();
    if super::inode_at("/proc/self/ns/user".as_ref()) == Some(inode) {
        return Ok(IdMaps::of_node());
    }
    read_in(owner.into()).context("read the ids of the pod's user namespace")
}

/// Reads the id maps through a process in the namespace, as `/proc` shows them by process only. The namespace
/// may have none while a pod is being set up, so a child process enters it for a moment.
fn read_in(user_namespace: OwnedFd) -> io::Result<IdMaps> {
    let (from_child, to_parent) = pipe()?;
    let parent = nix::unistd::getpid();
    // SAFETY: until it ends the child makes only system calls, on descriptors it has inherited. It takes
    // no lock and allocates nothing.
    let child = match unsafe { fork() }? {
        ForkResult::Child => {
            let _ = prctl::set_pdeathsig(Some(Signal::SIGKILL));
            // The parent may have ended before the signal was requested.
            if nix::unistd::getppid() != parent {
                // SAFETY: ends the process, nothing else.
                unsafe { libc::_exit(1) };
            }
            let entered = setns(&user_namespace, CloneFlags::CLONE_NEWUSER);
            let _ = File::from(to_parent).write_all(&[u8::from(entered.is_ok())]);
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => child,
    };
    drop(to_parent);
    let mut entered = [0];
    let maps = File::from(from_child)
        .read_exact(&mut entered)
        .and_then(|()| match entered {
            [1] => Ok(IdMaps::parse(
                &fs::read_to_string(format!("/proc/{child}/uid_map"))?,
                &fs::read_to_string(format!("/proc/{child}/gid_map"))?,
            )),
            _ => Err(io::Error::other("it cannot be entered")),
        });
    kill(child, Signal::SIGKILL)?;
    waitpid(child, None)?;
    maps
}
