//! Routes for packets with a mark: a rule leads them to a table whose only route says that everything is local, so
//! that they stay in the pod whatever their destination.
//!
//! Rule and route have a protocol number of their own. So an agent that was killed halfway needs no memory of them,
//! and nothing else is ever removed. All of this is done in the namespace of the calling thread.

use std::io;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage, RouteScope, RouteType},
    rule::{RuleAction, RuleAttribute, RuleMessage},
};

use sidetrack_common::pod::LOOPBACK_IFINDEX;

use crate::kernel::netlink::{self, ignore_errnos};

/// What the kernel says of a rule or route that is not there, also where it has no IPv6.
pub const ABSENT: [i32; 4] = [
    libc::ENOENT,
    libc::ESRCH,
    libc::EAFNOSUPPORT,
    libc::EOPNOTSUPP,
];

/// A rule and the route that it leads to.
#[derive(Clone, Copy, Debug)]
pub struct MarkedRoute {
    /// The mark.
    pub mark: u32,
    /// The table.
    pub table: u32,
    /// The rule's priority. Without one the kernel gives each rule the next free number, and never finds that it
    /// exists.
    pub priority: u32,
    /// The protocol of both, by which they are found again; no number of rtnetlink.h.
    pub protocol: u8,
}

impl MarkedRoute {
    /// Adds what is missing, the route first. What is there already stays as it is, whichever program added it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add(&self, family: AddressFamily) -> io::Result<()> {
        let route = RouteNetlinkMessage::NewRoute(self.route(family));
        let added = netlink::change(route, NLM_F_CREATE | NLM_F_EXCL);
        ignore_errnos(&[libc::EEXIST], added)?;
        add_rule(self.rule(family))
    }

    /// Removes what [`MarkedRoute::add`] added, of both families.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let route = RouteNetlinkMessage::DelRoute(self.route(family));
            result = result
                .and(remove_rule(self.rule(family)))
                .and(ignore_errnos(&ABSENT, netlink::change(route, 0)));
        }
        result
    }

    fn rule(&self, family: AddressFamily) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family;
        message.header.action = RuleAction::ToTable;
        message.attributes = vec![
            RuleAttribute::Priority(self.priority),
            RuleAttribute::FwMark(self.mark),
            RuleAttribute::Table(self.table),
            RuleAttribute::Protocol(self.protocol.into()),
        ];
        message
    }

    fn route(&self, family: AddressFamily) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        message.header.kind = RouteType::Local;
        message.header.scope = RouteScope::Host;
        message.header.protocol = self.protocol.into();
        message.attributes = vec![
            RouteAttribute::Table(self.table),
            RouteAttribute::Oif(LOOPBACK_IFINDEX),
        ];
        message
    }
}

/// Adds a rule, unless it is there.
pub fn add_rule(rule: RuleMessage) -> io::Result<()> {
    let message = RouteNetlinkMessage::NewRule(rule);
    let added = netlink::change(message, NLM_F_CREATE | NLM_F_EXCL);
    ignore_errnos(&[libc::EEXIST], added)
}

/// Removes a rule, if it is there.
pub fn remove_rule(rule: RuleMessage) -> io::Result<()> {
    ignore_errnos(
        &ABSENT,
        netlink::change(RouteNetlinkMessage::DelRule(rule), 0),
    )
}

/// Whether a rule has a protocol number.
pub fn has_protocol(rule: &RuleMessage, protocol: u8) -> bool {
    let wanted = RuleAttribute::Protocol(protocol.into());
    rule.attributes.contains(&wanted)
}
