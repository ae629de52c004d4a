//! How packets that the program on a pod's interfaces has marked stay in the pod, in the namespace of the calling
//! thread.

use std::io;

use netlink_packet_route::{AddressFamily, rule::RuleMessage};
use sidetrack_common::forward::{MARK, TABLE};

use super::marked_routes::{MarkedRoute, has_protocol};

const ROUTE: MarkedRoute = MarkedRoute {
    mark: MARK,
    table: TABLE,
    // Before the rules that other programs add without a priority of their own, and after that of table `local`.
    priority: 1,
    // `ip rule` and `ip route` show it as `proto 174`.
    protocol: 174,
};

/// Adds what is missing. Without IPv6 in the namespace that family is left out.
///
/// # Errors
/// If the kernel refuses.
pub fn add(lo: u32) -> io::Result<()> {
    ROUTE.add(AddressFamily::Inet, lo)?;
    match ROUTE.add(AddressFamily::Inet6, lo) {
        Err(_) if !has_ipv6() => Ok(()),
        result => result,
    }
}

/// Removes what [`add`] added.
///
/// # Errors
/// If the kernel refuses.
pub fn remove(lo: u32) -> io::Result<()> {
    ROUTE.remove(lo)
}

/// Whether [`add`] added a rule: it concerns no packet that the pod's own processes send.
pub fn is_ours(rule: &RuleMessage) -> bool {
    has_protocol(rule, ROUTE.protocol)
}

/// Whether the namespace has IPv6 at all.
fn has_ipv6() -> bool {
    std::fs::exists("/proc/sys/net/ipv6").unwrap_or(true)
        && std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
            .is_ok_and(|value| value.trim() == "0")
}
