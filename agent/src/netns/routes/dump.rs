//! Reads a namespace's interfaces, addresses, routes and rules by netlink.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
    link::LinkAttribute,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteNextHopFlags,
        RouteType,
    },
    rule::{RuleAttribute, RuleMessage},
};
use rtnetlink::{Error, Handle, IpVersion, RouteMessageBuilder};
use sidetrack_common::{addr::Addr, pod::RouteKind};

use super::{AssignedAddress, FlatRoute, Snapshot, TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};

impl Snapshot {
    /// Reads everything through a handle whose socket is in the namespace.
    pub async fn read(handle: &Handle) -> Result<Self, Error> {
        let mut snapshot = Self::default();
        snapshot.read_links(handle).await?;
        snapshot.read_addresses(handle).await?;
        for request in [
            RouteMessageBuilder::<Ipv4Addr>::new().table_id(0).build(),
            RouteMessageBuilder::<Ipv6Addr>::new().table_id(0).build(),
        ] {
            snapshot.read_routes(handle, request).await?;
        }
        for version in [IpVersion::V4, IpVersion::V6] {
            snapshot.read_rules(handle, version).await?;
        }
        Ok(snapshot)
    }

    async fn read_links(&mut self, handle: &Handle) -> Result<(), Error> {
        let mut links = handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            for attribute in &link.attributes {
                if let LinkAttribute::IfName(name) = attribute {
                    self.links.insert(link.header.index, name.clone());
                }
            }
        }
        Ok(())
    }

    async fn read_addresses(&mut self, handle: &Handle) -> Result<(), Error> {
        let mut addresses = handle.address().get().execute();
        while let Some(message) = addresses.try_next().await? {
            self.addresses.extend(assigned_address(&message));
        }
        self.addresses
            .sort_by_key(|assigned| assigned.net.addr().is_ipv6());
        Ok(())
    }

    async fn read_routes(
        &mut self,
        handle: &Handle,
        mut request: RouteMessage,
    ) -> Result<(), Error> {
        request.header.table = RouteHeader::RT_TABLE_UNSPEC;
        let mut routes = handle.route().get(request).execute();
        while let Some(message) = routes.try_next().await? {
            self.routes.extend(flat_route(&message));
        }
        Ok(())
    }

    async fn read_rules(&mut self, handle: &Handle, version: IpVersion) -> Result<(), Error> {
        let mut rules = handle.rule().get(version).execute();
        while let Some(rule) = rules.try_next().await? {
            self.policy_routing |= !is_default_table(rule_table(&rule));
        }
        Ok(())
    }
}

fn is_default_table(table: u32) -> bool {
    matches!(table, TABLE_LOCAL | TABLE_MAIN | TABLE_DEFAULT)
}

/// The table a rule leads to. The header has room for eight bits, the attribute for all.
fn rule_table(rule: &RuleMessage) -> u32 {
    rule.attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        })
        .unwrap_or(u32::from(rule.header.table))
}

/// A route, unless no packet takes it or it is of a table that is not flattened.
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
                let hop = hops
                    .iter()
                    .find(|hop| !hop.flags.contains(RouteNextHopFlags::Dead))?;
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
    is_default_table(route.table).then_some(route)
}

fn route_kind(kind: RouteType) -> Option<RouteKind> {
    Some(match kind {
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
