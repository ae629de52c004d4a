//! Takes listeners that were open before their pod was enrolled into the listener map, so that
//! running sidecars need no restart.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6};
use sidetrack_common::{addr::Family, conn::ListenerKey, names::LISTENER_SLOTS};

use super::{Netns, processes::Processes};
use crate::kernel::{maps::Maps, sock_diag, sys};

impl Processes {
    /// Puts every listener of some ports, other than those on loopback, into the map. Answers how many
    /// were there and could not be had.
    pub fn adopt(&self, inode: u64, cookie: u64, ports: &[u16], maps: &Maps) -> Result<usize> {
        let pids = self.in_netns(inode);
        // A process may end at any time; any of the namespace's leads to it.
        let netns = pids
            .iter()
            .filter_map(|pid| Netns::open(format!("/proc/{pid}/ns/net").as_ref()).ok())
            .find(|netns| netns.inode() == inode);
        let sockets = match netns {
            Some(netns) => netns
                .run(|| listening(ports))?
                .context("list listening sockets; is sock_diag (CONFIG_INET_DIAG) there?")?,
            None => HashMap::new(),
        };
        // A socket stays open as long as anybody has a duplicate of it. Its sidecar may close it at that
        // very time, and what the kernel still gives it then is lost: duplicate only what must be.
        let mut left = HashSet::new();
        for (inode, socket) in &sockets {
            if !is_known(socket, cookie, maps)? {
                left.insert(*inode);
            }
        }
        for pid in pids {
            if left.is_empty() {
                break;
            }
            for (inode, socket) in take(*pid, &left) {
                if add(&socket, cookie, &sockets[&inode], maps)? {
                    left.remove(&inode);
                }
            }
        }
        Ok(left.len())
    }
}

/// Whether anybody listens on a port, other than on loopback.
pub fn is_served(netns: &Netns, port: u16) -> Result<bool> {
    let sockets = netns
        .run(|| listening(&[port]))?
        .context("list listening sockets; is sock_diag (CONFIG_INET_DIAG) there?")?;
    Ok(!sockets.is_empty())
}

/// A listening socket.
struct Listening {
    port: u16,
    /// Those it may serve.
    families: &'static [Family],
    /// `SO_COOKIE`.
    cookie: u64,
}

/// Listening sockets of this thread's namespace by inode.
fn listening(ports: &[u16]) -> io::Result<HashMap<u64, Listening>> {
    let mut sockets = HashMap::new();
    for (family, families) in [
        (AF_INET, &[Family::V4][..]),
        // An IPv6-only one refuses IPv4 when it is tried; the kernel programs then try the next slot.
        (AF_INET6, &[Family::V6, Family::V4][..]),
    ] {
        for socket in sock_diag::listeners(family)? {
            let address = socket.header.socket_id.source_address;
            let port = socket.header.socket_id.source_port;
            if ports.contains(&port) && !address.to_canonical().is_loopback() {
                let listening = Listening {
                    port,
                    families,
                    cookie: sock_diag::cookie(&socket),
                };
                sockets.insert(u64::from(socket.header.inode), listening);
            }
        }
    }
    Ok(sockets)
}

/// Every slot that a pod's listeners of one family and port may be in.
fn slots(netns: u64, family: Family, port: u16) -> impl Iterator<Item = ListenerKey> {
    (0..LISTENER_SLOTS).map(move |slot| ListenerKey {
        netns,
        family: family as u16,
        port,
        slot,
    })
}

/// Whether a socket is in the map for every family it may serve.
fn is_known(socket: &Listening, netns: u64, maps: &Maps) -> Result<bool> {
    for family in socket.families {
        let mut found = false;
        for key in slots(netns, *family, socket.port) {
            let cookie = maps.listeners.get(&key).context("read the listener map")?;
            found |= cookie == Some(socket.cookie);
        }
        if !found {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Duplicates of those of a process's sockets that are wanted. Their inodes are in
/// `/proc/PID/fdinfo` (Linux 5.14), which requires permission to trace the process;
/// `/proc/PID/fd` would require more.
fn take(pid: i32, wanted: &HashSet<u64>) -> Vec<(u64, OwnedFd)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let mut pidfd = None;
    let mut duplicates: Vec<(u64, OwnedFd)> = Vec::new();
    for entry in entries.flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let (Some(number), Some(inode)) = (number, inode_of(&info)) else {
            continue;
        };
        if !wanted.contains(&inode) || duplicates.iter().any(|(known, _)| *known == inode) {
            continue;
        }
        if pidfd.is_none() {
            pidfd = sys::pidfd_open(pid).ok();
        }
        let duplicate = pidfd
            .as_ref()
            .and_then(|pidfd| sys::pidfd_getfd(pidfd, number).ok());
        duplicates.extend(duplicate.map(|socket| (inode, socket)));
    }
    duplicates
}

/// The line `ino:` of an fdinfo file.
fn inode_of(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("ino:"))?;
    line.trim().parse().ok()
}

/// Puts a socket into a free slot per family, unless it is in one; `false` if the map is full.
fn add(socket: &OwnedFd, netns: u64, listening: &Listening, maps: &Maps) -> Result<bool> {
    for family in listening.families {
        let mut known = false;
        let mut free = None;
        for key in slots(netns, *family, listening.port) {
            match maps.listeners.get(&key).context("read the listener map")? {
                Some(cookie) if cookie == listening.cookie => known = true,
                Some(_) => {}
                None => free = free.or(Some(key)),
            }
        }
        let Some(key) = free.filter(|_| !known) else {
            continue;
        };
        match maps.listeners.insert(&key, &(socket.as_raw_fd() as u64)) {
            Ok(()) => {}
            // It closed or stopped listening meanwhile.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            // Inbound connections are refused then. A pod that is not enrolled would receive them
            // without its sidecar.
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => return Ok(false),
            Err(error) => return Err(error).context("put the sidecar's listener into the map"),
        }
    }
    Ok(true)
}
