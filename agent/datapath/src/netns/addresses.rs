//! Adds an address to lo and removes it, in the namespace of the calling thread.

use std::{io, net::Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage},
};

use sidetrack_common::pod::LOOPBACK_IFINDEX;

use crate::kernel::netlink;

/// Adds an address of one host.
pub fn add(addr: Ipv6Addr) -> io::Result<()> {
    let message = RouteNetlinkMessage::NewAddress(host(addr));
    netlink::change(message, NLM_F_CREATE | NLM_F_EXCL)
}

/// Removes an address that [`add`] added.
pub fn remove(addr: Ipv6Addr) -> io::Result<()> {
    netlink::change(RouteNetlinkMessage::DelAddress(host(addr)), 0)
}

fn host(addr: Ipv6Addr) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.prefix_len = 128;
    message.header.index = LOOPBACK_IFINDEX;
    message.attributes = vec![
        AddressAttribute::Address(addr.into()),
        AddressAttribute::Local(addr.into()),
    ];
    message
}
