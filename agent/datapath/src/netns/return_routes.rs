//! How the app's answers reach a sidecar that calls it from the client's address: the app's socket has the mark of the
//! sidecar's SYN, and packets with that mark stay in the pod.
//!
//! A rule leads packets with the mark to a table whose only route is `local default dev lo`, as istio-init's does.
//! `tcp_fwmark_accept` gives accepted sockets the mark, and `fwmark_reflect` resets for closed ports. What is added
//! here can be distinguished from everything else in the namespace: rule and route have a protocol number of their own,
//! and the settings a value that no one else writes. So an agent that was killed halfway needs no memory of it, and
//! nothing else is ever removed.
//!
//! All of this is done in the namespace of the calling thread.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use netlink_packet_route::{
    AddressFamily,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};
use sidetrack_policy::policy::ReturnRoute;

use super::marked_routes::{MarkedRoute, has_protocol};

/// Protocol number of rules and routes that sidetrack adds, and its value of [`SETTINGS`]. `ip rule` and `ip route`
/// show it as `proto 173`.
const OURS: u8 = 173;

/// Whether an accepted socket has the mark of the SYN, and whether packets without a socket have that of the packet
/// they answer. Every value but 0 turns them on. A kernel without IPv6 does not have the last.
const SETTINGS: [&str; 3] = [
    "sys/net/ipv4/tcp_fwmark_accept",
    "sys/net/ipv4/fwmark_reflect",
    "sys/net/ipv6/fwmark_reflect",
];

/// Adds what is missing. What is there already stays as it is, whichever program added it.
pub fn add(wanted: ReturnRoute, with_v6: bool) -> io::Result<()> {
    let route = marked_route(wanted);
    route.add(AddressFamily::Inet)?;
    if with_v6 {
        route.add(AddressFamily::Inet6)?;
    }
    change_settings(0, OURS)
}

/// Removes a rule and a route that [`add`] added.
pub fn remove(added: ReturnRoute) -> io::Result<()> {
    marked_route(added).remove()
}

const fn marked_route(route: ReturnRoute) -> MarkedRoute {
    MarkedRoute {
        mark: route.mark,
        table: route.table,
        // Before those of network plugins.
        priority: 173,
        protocol: OURS,
    }
}

/// Turns off the settings that [`add`] turned on.
pub fn restore_settings() -> io::Result<()> {
    change_settings(OURS, 0)
}

/// The mark and the table of a rule that [`add`] added, if it is one.
pub fn added(rule: &RuleMessage) -> Option<ReturnRoute> {
    has_protocol(rule, OURS).then(|| marked(rule))?
}

/// The mark and the table of a rule that leads packets with one mark to a table, and does nothing else.
pub fn marked(rule: &RuleMessage) -> Option<ReturnRoute> {
    let header = &rule.header;
    let is_plain = header.dst_len == 0 && header.src_len == 0 && header.tos == 0;
    let (mut mark, mut table) = (None, u32::from(header.table));
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::Table(value) => table = *value,
            RuleAttribute::FwMask(u32::MAX)
            | RuleAttribute::Priority(_)
            | RuleAttribute::Protocol(_)
            | RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
            _ => return None,
        }
    }
    let mark = mark.filter(|_| is_plain && header.action == RuleAction::ToTable)?;
    Some(ReturnRoute { mark, table })
}

/// Gives settings with one value another one. Most often none has it, so they are read where that costs nothing.
fn change_settings(from: u8, to: u8) -> io::Result<()> {
    for path in SETTINGS {
        let value = match fs::read_to_string(Path::new("/proc").join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            value => value?,
        };
        if value.trim() == from.to_string() {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = openat(procfs()?, path, flags, Mode::empty())?;
            write!(File::from(file), "{to}")?;
        }
    }
    Ok(())
}

/// A procfs that is mounted nowhere: in a container that is not privileged, /proc/sys cannot be written.
fn procfs() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}
