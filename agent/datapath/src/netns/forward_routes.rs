//! How packets that the program on a pod's interfaces has marked stay in the pod, in the namespace of the calling
//! thread.
//!
//! Only packets that have entered the pod: with `tcp_fwmark_accept` the sidecar's socket has the mark of the SYN, and
//! what it answers is to leave the pod.

use std::io;

use netlink_packet_route::{
    AddressFamily,
    rule::{RuleAction, RuleAttribute, RuleMessage},
};
use sidetrack_common::forward::{MARK, TABLE};

use super::marked_routes::{MarkedRoute, add_rule, has_protocol, remove_rule};

/// Of the three rules, before those that other programs add without a priority of their own, and after that of table
/// `local`.
const SKIP: u32 = 1;
const DELIVER: u32 = 2;
const RESUME: u32 = 3;

/// `ip rule` and `ip route` show it as `proto 174`.
const OURS: u8 = 174;

const ROUTE: MarkedRoute = MarkedRoute {
    mark: MARK,
    table: TABLE,
    priority: DELIVER,
    protocol: OURS,
};

const FAMILIES: [AddressFamily; 2] = [AddressFamily::Inet, AddressFamily::Inet6];

/// Adds what is missing. Without IPv6 in the namespace that family is omitted.
///
/// # Errors
/// If the kernel refuses.
pub fn add() -> io::Result<()> {
    for family in FAMILIES {
        match add_family(family) {
            Err(_) if family == AddressFamily::Inet6 && !has_ipv6() => {}
            result => result?,
        }
    }
    Ok(())
}

fn add_family(family: AddressFamily) -> io::Result<()> {
    // In this order none leads anywhere before the ones it needs are there.
    add_rule(resume(family))?;
    add_rule(skip(family))?;
    ROUTE.add(family)
}

/// Removes what [`add`] added.
///
/// # Errors
/// If the kernel refuses.
pub fn remove() -> io::Result<()> {
    let mut result = ROUTE.remove();
    for family in FAMILIES {
        for rule in [skip(family), resume(family)] {
            result = result.and(remove_rule(rule));
        }
    }
    result
}

/// Packets of the pod's own sockets, for which the kernel names lo as the interface they came by, skip [`ROUTE`].
fn skip(family: AddressFamily) -> RuleMessage {
    let attributes = vec![
        RuleAttribute::FwMark(MARK),
        RuleAttribute::Iifname("lo".to_owned()),
        RuleAttribute::Goto(RESUME),
    ];
    rule(family, RuleAction::Goto, SKIP, attributes)
}

/// Where [`skip`] leads: it does nothing.
fn resume(family: AddressFamily) -> RuleMessage {
    rule(family, RuleAction::Nop, RESUME, Vec::new())
}

fn rule(
    family: AddressFamily,
    action: RuleAction,
    priority: u32,
    mut attributes: Vec<RuleAttribute>,
) -> RuleMessage {
    attributes.push(RuleAttribute::Priority(priority));
    attributes.push(RuleAttribute::Protocol(OURS.into()));
    let mut message = RuleMessage::default();
    message.header.family = family;
    message.header.action = action;
    message.attributes = attributes;
    message
}

/// Whether [`add`] added a rule: it concerns no packet that the pod's own processes send.
pub fn is_ours(rule: &RuleMessage) -> bool {
    has_protocol(rule, OURS)
}

/// Whether the namespace has IPv6 at all.
fn has_ipv6() -> bool {
    std::fs::exists("/proc/sys/net/ipv6").unwrap_or(true)
        && std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
            .is_ok_and(|value| value.trim() == "0")
}
