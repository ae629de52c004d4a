//! The route that makes dedicated IPv6 targets local in a pod, in the namespace of the calling thread.
//!
//! Its source is `::1`, so that the kernel reuses ports in TIME_WAIT as it does for connections to loopback
//! (`tcp_tw_reuse=2`, `tcp_twsk_unique` in net/ipv4/tcp_ipv4.c).
//!
//! Open connections need it. It therefore stays after the pod has departed, as long as [`Departed`] finds one, and in
//! pods from which sidetrack is uninstalled; it leads nothing else anywhere.
//!
//! [`Departed`]: crate::node::Departed

use std::{io, net::Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteScope, RouteType},
};
use sidetrack_common::{pod::LOOPBACK_IFINDEX, target::DEDICATED_V6};

use super::marked_routes::ABSENT;
use crate::kernel::netlink::{self, ignore_errnos};

/// `ip -6 route show table local` shows it as `proto 175`.
const OURS: u8 = 175;

/// Adds the route, unless it is there.
///
/// # Errors
/// If the kernel refuses: lo is down, or IPv6 is disabled on it.
pub fn add() -> io::Result<()> {
    let route = RouteNetlinkMessage::NewRoute(route());
    let added = netlink::change(route, NLM_F_CREATE | NLM_F_EXCL);
    ignore_errnos(&[libc::EEXIST], added)
}

/// Removes the route, if [`add`] added it.
///
/// # Errors
/// If the kernel refuses.
pub fn remove() -> io::Result<()> {
    let removed = netlink::change(RouteNetlinkMessage::DelRoute(route()), 0);
    ignore_errnos(&ABSENT, removed)
}

fn route() -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet6;
    message.header.destination_prefix_length = DEDICATED_V6.1;
    message.header.kind = RouteType::Local;
    message.header.scope = RouteScope::Host;
    message.header.protocol = OURS.into();
    let first = Ipv6Addr::from(DEDICATED_V6.0.octets());
    message.attributes = vec![
        RouteAttribute::Destination(RouteAddress::Inet6(first)),
        RouteAttribute::Table(super::routes::TABLE_LOCAL),
        RouteAttribute::Oif(LOOPBACK_IFINDEX),
        RouteAttribute::PrefSource(RouteAddress::Inet6(Ipv6Addr::LOCALHOST)),
    ];
    message
}
