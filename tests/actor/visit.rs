//! Sockets in the network of a pod, made by a process that is not in it and marks them, as ztunnel does.

use std::{fs::File, io, path::Path, sync::OnceLock};

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};
use socket2::SockRef;

/// The pod's network and the mark; none for an actor that is in the pod.
static VISITED: OnceLock<(File, u32)> = OnceLock::new();

/// Has all sockets made in a network namespace, with a mark.
pub fn begin(netns: &Path, mark: u32) -> Result<()> {
    let namespace = File::open(netns).with_context(|| format!("open {}", netns.display()))?;
    VISITED.get_or_init(|| (namespace, mark));
    Ok(())
}

/// Makes a socket. Only the calling thread is in the pod's network then, and stays there until it ends.
pub fn make<S: std::os::fd::AsFd>(make: impl FnOnce() -> io::Result<S>) -> io::Result<S> {
    let Some((namespace, mark)) = VISITED.get() else {
        return make();
    };
    setns(namespace, CloneFlags::CLONE_NEWNET)?;
    let socket = make()?;
    SockRef::from(&socket).set_mark(*mark)?;
    Ok(socket)
}
