//! Reads a namespace's interfaces, addresses, routes and rules by netlink.

mod answer;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::ControlFlow,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{LinkAttribute, LinkMessage},
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteNextHopFlags, RouteType},
    rule::RuleMessage,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use sidetrack_common::{
    addr::Addr,
    pod::{LOOPBACK_IFINDEX, RouteKind},
};

use self::answer::Answer;
use super::{
    AssignedAddress, MAX_ROUTES, Snapshot,
    flat_route::{FlatRoute, NO_INTERFACE, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN},
};
use crate::{
    kernel::netlink::{self, continue_while},
    netns::{forward_routes, return_routes},
};

/// Interfaces and addresses that are read of a pod, each.
const MAX_LISTED: usize = 4096;
/// Bytes of interfaces that are read of a pod. One can have 60 KB of names.
const MAX_LINK_BYTES: usize = 16 << 20;
/// Rules of return routes that are remembered, so that they are removed again.
const MAX_MARKED: usize = 16;
/// Hops of a multipath route that are looked at. One with more counts as captured.
const MAX_HOPS: usize = 16;
/// How long reading may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

impl Snapshot {
    /// Reads everything in the namespace of the calling thread, up to what one pod may have.
    pub fn read() -> io::Result<Self> {
        let mut snapshot = Self::default();
        let until = Instant::now() + WAIT_TIMEOUT;
        snapshot.read_links(until)?;
        snapshot.read_addresses(until)?;
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            snapshot.read_rules(family, until)?;
            for table in [TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT] {
                snapshot.read_routes(table, family, until)?;
            }
        }
        for (is_v6, table) in snapshot.rules.other_tables() {
            let family = if is_v6 {
                AddressFamily::Inet6
            } else {
                AddressFamily::Inet
            };
            snapshot.read_routes(table, family, until)?;
        }
        Ok(snapshot)
    }

    fn read_links(&mut self, until: Instant) -> io::Result<()> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let mut bytes = 0;
        dump(request, until, |answer| {
            bytes += answer.bytes;
            self.take(answer, None);
            continue_while(self.links.len() < MAX_LISTED && bytes < MAX_LINK_BYTES)
        })
    }

    fn read_addresses(&mut self, until: Instant) -> io::Result<()> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        dump(request, until, |answer| {
            self.take(answer, None);
            continue_while(self.addresses.len() < MAX_LISTED)
        })?;
        self.addresses
            .sort_by_key(|assigned| assigned.net.addr().is_ipv6());
        Ok(())
    }

    /// Reads one table. A pod has at most [`MAX_ROUTES`] rows, so more routes are not read.
    fn read_routes(&mut self, table: u32, family: AddressFamily, until: Instant) -> io::Result<()> {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        match u8::try_from(table) {
            Ok(number) => request.header.table = number,
            Err(_) => request.attributes.push(RouteAttribute::Table(table)),
        }
        let before = self.routes.len();
        let read = dump(RouteNetlinkMessage::GetRoute(request), until, |answer| {
            self.take(answer, Some(table));
            continue_while(self.routes.len() - before <= MAX_ROUTES)
        });
        match read {
            // The table has no route yet.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            // It has one with so many hops that it fits into no answer.
            Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                self.rules.set_unclear(Some(family == AddressFamily::Inet6));
                Ok(())
            }
            result => result,
        }
    }

    fn read_rules(&mut self, family: AddressFamily, until: Instant) -> io::Result<()> {
        let mut request = RuleMessage::default();
        request.header.family = family;
        let mut rules = 0;
        let read = dump(RouteNetlinkMessage::GetRule(request), until, |answer| {
            self.take(answer, None);
            rules += 1;
            continue_while(rules < MAX_LISTED)
        });
        // The kernel has no IPv6, or no rules of it.
        netlink::ignore_errnos(&[libc::EAFNOSUPPORT, libc::EOPNOTSUPP], read)
    }

    /// Adds what a message says. Routes of other tables than `table`, if one is given, are omitted.
    fn take(&mut self, answer: Answer, table: Option<u32>) {
        let answer_is_v6 = answer.is_v6();
        let Some(message) = answer.message else {
            self.rules.set_unclear(answer_is_v6);
            return;
        };
        match message {
            RouteNetlinkMessage::NewLink(link) => {
                self.entrances.add(&link);
                for attribute in &link.attributes {
                    if let LinkAttribute::IfName(name) = attribute {
                        self.links.insert(link.header.index, name.clone());
                    }
                }
            }
            RouteNetlinkMessage::NewAddress(message) => {
                self.addresses.extend(assigned_address(&message));
            }
            RouteNetlinkMessage::NewRoute(message) => {
                let route = flat_route(&message);
                let wanted = |route: &FlatRoute| table.is_none_or(|table| route.table == table);
                let Some(route) = route.filter(wanted) else {
                    return;
                };
                // For some of the pod's packets only, which the programs do not tell apart.
                if message.header.tos != 0 || message.header.source_prefix_length != 0 {
                    self.rules.set_unclear(answer_is_v6);
                    let own = route.destination;
                    let is_own = route.kind == RouteKind::Local
                        && own.prefix_len() == own.max_prefix_len()
                        && self.has_address(own.addr());
                    if !is_own {
                        // Before others of this prefix: none of these may decide alone.
                        self.routes.insert(0, route.anywhere());
                    }
                } else {
                    self.routes.push(route);
                }
            }
            RouteNetlinkMessage::NewRule(rule) if !forward_routes::is_ours(&rule) => {
                let lo = self.links.get(&LOOPBACK_IFINDEX).map(String::as_str);
                self.rules.add(&rule, lo);
                if let Some(added) = return_routes::added(&rule)
                    && !self.added_rules.contains(&added)
                    && self.added_rules.len() < MAX_MARKED
                {
                    self.added_rules.push(added);
                }
            }
            _ => {}
        }
    }

    /// What an answer of the kernel says, whatever it was asked. For fuzzing.
    ///
    /// # Errors
    /// If a message cannot be read.
    pub fn of_answer(datagram: &[u8]) -> io::Result<Self> {
        let mut snapshot = Self::default();
        netlink::messages(datagram, |payload| {
            if let NetlinkPayload::InnerMessage(answer) = payload {
                snapshot.take(answer, None);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(snapshot)
    }
}

fn dump(
    request: RouteNetlinkMessage,
    until: Instant,
    visit: impl FnMut(Answer) -> ControlFlow<()>,
) -> io::Result<()> {
    let socket = netlink::open(NETLINK_ROUTE)?;
    // The kernel then lists the requested table only (Linux 4.20).
    socket.set_netlink_get_strict_chk(true)?;
    netlink::dump(&socket, request, until, visit)
}

/// A route, unless no packet takes it.
pub(super) fn flat_route(message: &RouteMessage) -> Option<FlatRoute> {
    let default: IpAddr = match message.header.address_family {
        AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let flags = message.header.flags;
    if flags.contains(RouteFlags::Cloned) || flags.contains(RouteFlags::Dead) {
        return None;
    }
    let mut route = FlatRoute {
        destination: IpNet::new_assert(default, 0),
        table: u32::from(message.header.table),
        metric: 0,
        kind: route_kind(message.header.kind)?,
        ifindex: 0,
        other_hops: Vec::new(),
        gateway: None,
        preferred_source: None,
    };
    let mut destination = default;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(addr) => destination = ip(addr)?,
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::Oif(index) => route.ifindex = *index,
            RouteAttribute::Gateway(addr) => route.gateway = ip(addr),
            RouteAttribute::PrefSource(addr) => route.preferred_source = ip(addr),
            RouteAttribute::MultiPath(hops) => {
                let mut live = hops
                    .iter()
                    .filter(|hop| !hop.flags.contains(RouteNextHopFlags::Dead));
                let hop = live.next()?;
                route.other_hops = live.map(|hop| hop.interface_index).collect();
                route.other_hops.sort_unstable();
                route.other_hops.dedup();
                if route.other_hops.len() > MAX_HOPS {
                    route.other_hops = vec![NO_INTERFACE];
                }
                route.ifindex = hop.interface_index;
                route.gateway = hop.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Gateway(addr) => ip(addr),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, message.header.destination_prefix_length).ok()?;
    Some(route)
}

fn route_kind(kind: RouteType) -> Option<RouteKind> {
    Some(match kind {
        RouteType::Throw => RouteKind::Throw,
        // Anycast addresses are delivered locally.
        RouteType::Local | RouteType::Anycast => RouteKind::Local,
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Broadcast | RouteType::Multicast => RouteKind::Group,
        _ => return None,
    })
}

fn ip(addr: &RouteAddress) -> Option<IpAddr> {
    match addr {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// An address, and whether the kernel picks it as a source on its own.
pub(super) fn assigned_address(message: &AddressMessage) -> Option<AssignedAddress> {
    let (mut local, mut address) = (None, None);
    let mut flags = AddressFlags::empty();
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let addr = local.or(address)?;
    let secondary = message.header.flags.contains(AddressHeaderFlags::Secondary);
    let unusable = AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Dadfailed;
    let usable = match addr {
        // For IPv6 the same bit means "temporary".
        IpAddr::V4(_) => !secondary && message.header.scope != AddressScope::Host,
        IpAddr::V6(_) => {
            !flags.intersects(unusable)
                && message.header.scope == AddressScope::Universe
                && !Addr::from(addr).is(Addr::SELF_V6)
        }
    };
    Some(AssignedAddress {
        net: IpNet::new(addr, message.header.prefix_len).ok()?,
        ifindex: message.header.index,
        usable,
    })
}
