//! How packets that the program on a pod's interfaces has marked stay in the pod: a rule leads them to a table whose
//! only route says that everything is local.
//!
//! Rule and route have a protocol number of their own. So an agent that was killed half-way needs no memory of them,
//! and nothing else is ever removed. All of this is done in the namespace of the calling thread.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use sidetrack_common::forward::{MARK, TABLE};

use crate::kernel::netlink;

/// Protocol number of the rule and the route; `ip rule` and `ip route` show it as `proto 174`. No number of
/// rtnetlink.h.
const OURS: u8 = 174;

/// Before the rules that other programs add without a priority of their own, and after that of table `local`.
const PRIORITY: u32 = 1;

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// Adds what is missing. Without IPv6 in the namespace that family is left out.
///
/// # Errors
/// If the kernel refuses.
pub fn add(lo: u32) -> io::Result<()> {
    for family in FAMILIES {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let route = RouteNetlinkMessage::NewRoute(route(family, lo));
        match unless(&[libc::EEXIST], netlink::change(route, flags)) {
            Err(_) if family == AddressFamily::Inet6 && !has_ipv6() => continue,
            result => result?,
        }
        let rule = RouteNetlinkMessage::NewRule(rule(family));
        unless(&[libc::EEXIST], netlink::change(rule, flags))?;
    }
    Ok(())
}

/// Removes what [`add`] added.
///
/// # Errors
/// If the kernel refuses.
pub fn remove(lo: u32) -> io::Result<()> {
    const ABSENT: [i32; 3] = [libc::ENOENT, libc::ESRCH, libc::EAFNOSUPPORT];
    let mut result = Ok(());
    for family in FAMILIES {
        let rule = RouteNetlinkMessage::DelRule(rule(family));
        let route = RouteNetlinkMessage::DelRoute(route(family, lo));
        for removed in [netlink::change(rule, 0), netlink::change(route, 0)] {
            result = result.and(unless(&ABSENT, removed));
        }
    }
    result
}

/// Whether [`add`] added a rule: it concerns no packet that the pod's own processes send.
pub fn is_ours(rule: &RuleMessage) -> bool {
    let ours = RuleAttribute::Protocol(RouteProtocol::from(OURS));
    rule.attributes.contains(&ours)
}

fn rule(family: AddressFamily) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(PRIORITY),
        RuleAttribute::FwMark(MARK),
        RuleAttribute::Table(TABLE),
        RuleAttribute::Protocol(OURS.into()),
    ];
    message
}

fn route(family: AddressFamily, lo: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.kind = RouteType::Local;
    message.header.scope = RouteScope::Host;
    message.header.protocol = OURS.into();
    message.attributes = vec![RouteAttribute::Table(TABLE), RouteAttribute::Oif(lo)];
    message
}

/// Whether the namespace has IPv6 at all.
fn has_ipv6() -> bool {
    std::fs::exists("/proc/sys/net/ipv6").unwrap_or(true)
        && std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
            .is_ok_and(|value| value.trim() == "0")
}

/// Takes some errors for success.
fn unless(errnos: &[i32], result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if errnos
                .iter()
                .any(|errno| error.raw_os_error() == Some(*errno)) =>
        {
            Ok(())
        }
        other => other,
    }
}
