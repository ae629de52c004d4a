//! Takes listeners that were open before their pod was enrolled into the listener map, so that
//! running sidecars need no restart.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use anyhow::{Context as _, Result};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6};
use sidetrack_common::{addr::Family, conn::ListenerKey, names::LISTENER_SLOTS};

use super::{Netns, processes::Processes, sock_diag};
use crate::bpf::{maps::Maps, sys};

/// `SO_COOKIE`.
const SO_COOKIE: i32 = 57;

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
        let mut left: HashSet<u64> = sockets.keys().copied().collect();
        for pid in pids {
            if left.is_empty() {
                break;
            }
            for (inode, socket) in take(*pid, &left) {
                left.remove(&inode);
                let (port, families) = &sockets[&inode];
                add(&socket, cookie, *port, families, maps)?;
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

/// Listening sockets of this thread's namespace by inode, with their port and the families they can
/// serve.
fn listening(ports: &[u16]) -> io::Result<HashMap<u64, (u16, &'static [Family])>> {
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
                sockets.insert(u64::from(socket.header.inode), (port, families));
            }
        }
    }
    Ok(sockets)
}

/// Duplicates of those of a process's sockets that are wanted. `/proc/PID/fdinfo` tells their inodes
/// (Linux 5.14) to whoever may trace the process; `/proc/PID/fd` would ask for more.
fn take(pid: i32, wanted: &HashSet<u64>) -> Vec<(u64, OwnedFd)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return Vec::new();
    };
    let mut pidfd = None;
    let mut taken: Vec<(u64, OwnedFd)> = Vec::new();
    for entry in entries.flatten() {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let (Some(number), Some(inode)) = (number, inode_of(&info)) else {
            continue;
        };
        if !wanted.contains(&inode) || taken.iter().any(|(known, _)| *known == inode) {
            continue;
        }
        if pidfd.is_none() {
            pidfd = sys::pidfd_open(pid).ok();
        }
        let duplicate = pidfd
            .as_ref()
            .and_then(|pidfd| sys::pidfd_getfd(pidfd, number).ok());
        taken.extend(duplicate.map(|socket| (inode, socket)));
    }
    taken
}

/// The line `ino:` of an fdinfo file.
fn inode_of(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("ino:"))?;
    line.trim().parse().ok()
}

/// Puts a socket into a free slot per family, unless it is in one.
fn add(socket: &OwnedFd, netns: u64, port: u16, families: &[Family], maps: &Maps) -> Result<()> {
    let socket_cookie =
        sys::socket_option_u64(socket.as_fd(), SO_COOKIE).context("read a socket's cookie")?;
    for family in families {
        let keys = (0..LISTENER_SLOTS).map(|slot| ListenerKey {
            netns,
            family: *family as u16,
            port,
            slot,
        });
        let mut known = false;
        let mut free = None;
        for key in keys {
            match maps.listeners.get(&key).context("read the listener map")? {
                Some(cookie) if cookie == socket_cookie => known = true,
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
            Err(error) => return Err(error).context("put the sidecar's listener into the map"),
        }
    }
    Ok(())
}
