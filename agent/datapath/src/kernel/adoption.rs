//! Puts listening sockets of running processes into the listener map. A program walks over the processes'
//! open files and stores the sockets that are wanted. The agent never holds a descriptor of a pod, whose
//! close could block, and never reads what a pod can make long, such as `/proc/PID/fdinfo`.

use std::{
    fs::File,
    io,
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    time::Instant,
};

use anyhow::Result;
use aya::{Btf, Ebpf};
use bytemuck::Zeroable as _;
use sidetrack_common::{
    conn::{Adopted, ListenerKey, Purpose, WantedKey, WantedListener},
    names,
    pod::{Route, RouteKey},
};

use super::{
    maps::from_pin,
    objects::{load_iterator, own_map},
    pins::Pins,
    sys,
    table::Table,
};

/// The program and its maps.
#[derive(Debug)]
pub struct Adoption {
    program: OwnedFd,
    wanted: Table<WantedKey, WantedListener>,
    /// Sidecars' listeners.
    pub listeners: Table<ListenerKey, u64>,
    /// Pods whose outbound capture port has a listener on loopback.
    pub sidecar_bits: Table<u64, u32>,
    /// Pods' routes.
    pub routes: Table<RouteKey, Route>,
}

/// A socket and one of its descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSocket {
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// The process.
    pub pid: i32,
    /// Number of the descriptor there.
    pub fd: u32,
}

impl Adoption {
    /// Loads the program.
    pub fn load((ebpf, types): (&mut Ebpf, &Btf), pins: &Pins) -> Result<Self> {
        Ok(Self {
            program: load_iterator((ebpf, types), "st_adopt", "task_file")?,
            wanted: own_map(ebpf, names::WANTED_LISTENER)?,
            listeners: from_pin(pins, names::LISTENERS)?,
            sidecar_bits: from_pin(pins, names::SIDECAR_BY_POD)?,
            routes: from_pin(pins, names::ROUTE_BY_POD)?,
        })
    }

    /// Looks for sockets, named by their cookies, among the open files of these processes, or of all of the node. Answers
    /// how many were not stored before the time was up.
    pub fn run(
        &self,
        sockets: &[(u64, WantedListener)],
        pids: Option<&[i32]>,
        until: Instant,
    ) -> io::Result<usize> {
        let walked = self.write(sockets).and_then(|()| match pids {
            Some(pids) => self.walk(sockets, pids, until),
            None => self.walk_all(until),
        });
        let mut missed = 0;
        for (cookie, _) in sockets {
            let key = key(*cookie, Purpose::Adopt);
            let row = self.wanted.get(&key)?;
            missed += usize::from(row.is_none_or(|row| row.adopted != Adopted::Complete as u32));
            self.wanted.remove(&key)?;
        }
        walked.map(|()| missed)
    }

    /// Finds a descriptor for each of these sockets, named by their cookies, as far as there is time. One process
    /// at a time is looked at, which takes Linux 6.1.
    ///
    /// # Errors
    /// If the open files cannot be looked at.
    pub fn find(
        &self,
        cookies: &[u64],
        pids: &[i32],
        until: Instant,
    ) -> io::Result<Vec<FoundSocket>> {
        let keys = || cookies.iter().map(|cookie| key(*cookie, Purpose::Find));
        for key in keys() {
            self.wanted.insert(&key, &WantedListener::zeroed())?;
        }
        let found = self.find_in(cookies, pids, until);
        for key in keys() {
            self.wanted.remove(&key)?;
        }
        found
    }

    fn find_in(
        &self,
        cookies: &[u64],
        pids: &[i32],
        until: Instant,
    ) -> io::Result<Vec<FoundSocket>> {
        let mut found: Vec<FoundSocket> = Vec::new();
        for pid in pids {
            self.walk_one(*pid, until)?;
            for cookie in cookies {
                let is_known = found.iter().any(|socket| socket.cookie == *cookie);
                if let Some(row) = self.wanted.get(&key(*cookie, Purpose::Find))?
                    && row.adopted != 0
                    && !is_known
                {
                    found.push(FoundSocket {
                        cookie: *cookie,
                        pid: *pid,
                        fd: row.fd,
                    });
                }
            }
            if Instant::now() >= until || found.len() == cookies.len() {
                break;
            }
        }
        Ok(found)
    }

    fn write(&self, sockets: &[(u64, WantedListener)]) -> io::Result<()> {
        sockets.iter().try_for_each(|(cookie, socket)| {
            self.wanted.insert(&key(*cookie, Purpose::Adopt), socket)
        })
    }

    fn walk(
        &self,
        sockets: &[(u64, WantedListener)],
        pids: &[i32],
        until: Instant,
    ) -> io::Result<()> {
        for pid in pids {
            match self.walk_one(*pid, until) {
                // Before Linux 6.1: all processes at once.
                Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::EINVAL)) => {
                    return self.walk_all(until);
                }
                result => result?,
            }
            if Instant::now() >= until || self.all_seen(sockets)? {
                break;
            }
        }
        Ok(())
    }

    /// Runs the program over the open files of a process, which may have ended.
    fn walk_one(&self, pid: i32, until: Instant) -> io::Result<()> {
        match sys::iterate(self.program.as_fd(), Some(pid)) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            files => visit(files?, until),
        }
    }

    /// The same over those of all processes.
    fn walk_all(&self, until: Instant) -> io::Result<()> {
        visit(sys::iterate(self.program.as_fd(), None)?, until)
    }

    fn all_seen(&self, sockets: &[(u64, WantedListener)]) -> io::Result<bool> {
        for (cookie, _) in sockets {
            let row = self.wanted.get(&key(*cookie, Purpose::Adopt))?;
            if row.is_some_and(|row| row.adopted == 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

const fn key(socket: u64, purpose: Purpose) -> WantedKey {
    WantedKey {
        socket,
        purpose: purpose as u64,
    }
}

/// Runs the program over all files of an iterator, as far as there is time.
fn visit(files: File, until: Instant) -> io::Result<()> {
    sys::read_iterator(files, |_| {
        if Instant::now() < until {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
}
