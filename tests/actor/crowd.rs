//! Descriptors and watches without number.

use std::{mem, os::fd::OwnedFd};

use anyhow::Result;
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
    eventfd::{EfdFlags, EventFd},
    resource::{Resource, getrlimit, setrlimit},
};

/// Descriptors that stay free.
const RESERVE: u64 = 512;

/// Opens as many descriptors as a process may have, and has one epoll instance watch them, over and over:
/// its text in `/proc/PID/fdinfo` has a line for each watch. Everything stays until the process ends.
///
/// An epoll instance keeps a watch when its descriptor is closed, as long as the file is open elsewhere.
pub fn open(watches: usize) -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let at_once = most.saturating_sub(RESERVE).min(watches as u64) as usize;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut open = Vec::new();
    let mut watched = 0;
    while watched < watches {
        open.clear();
        let file = OwnedFd::from(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        while open.len() < at_once && watched < watches {
            let duplicate = file.try_clone()?;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, watched as u64);
            epoll.add(&duplicate, event)?;
            open.push(duplicate);
            watched += 1;
        }
        mem::forget(file);
    }
    mem::forget(open);
    mem::forget(epoll);
    Ok(())
}
