//! A pod's routing tables as the decision needs them: for each prefix, whether packets stay in the
//! pod, leave it or go nowhere, by which device and from which address.
//!
//! The tables are read whole and flattened: the `local` table wins over `main`, which wins over
//! `default`, as the three rules every namespace starts with have it. A namespace with other rules
//! (policy routing) cannot be flattened; there every destination that no rule of ours knows counts
//! as reachable, so that nothing slips past the sidecar.

use std::{collections::HashMap, net::IpAddr};

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
    rule::RuleAttribute,
};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};
use sidetrack_common::{
    addr::{Addr, Family, V4_PREFIX_OFFSET},
    pod::{Route, RouteKey, RouteKind},
};

/// Routes a pod may have in the map; ROUTE_BY_POD holds 262,144 for all pods together.
const MAX_ROUTES: usize = 2048;

const TABLE_LOCAL: u32 = 255;
const TABLE_MAIN: u32 = 254;
const TABLE_DEFAULT: u32 = 253;

/// What a network namespace looks like at one time.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Interface names by index.
    pub links: HashMap<u32, String>,
    /// Assigned addresses, in the kernel's order: all IPv4, then all IPv6.
    pub addresses: Vec<AssignedAddress>,
    routes: Vec<FlatRoute>,
    policy_routing: bool,
}

/// An address on an interface.
#[derive(Clone, Copy, Debug)]
pub struct AssignedAddress {
    /// The address and its subnet.
    pub net: IpNet,
    /// The interface.
    pub ifindex: u32,
    /// Whether the kernel may pick it as a source on its own.
    usable: bool,
}

#[derive(Debug)]
struct FlatRoute {
    destination: IpNet,
    table: u32,
    metric: u32,
    kind: RouteKind,
    ifindex: u32,
    gateway: Option<IpAddr>,
    preferred_source: Option<IpAddr>,
}

impl Snapshot {
    /// Reads everything through a handle whose socket is in the namespace.
    pub async fn read(handle: &Handle) -> Result<Self, rtnetlink::Error> {
        let mut snapshot = Self::default();
        let mut links = handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            for attribute in &link.attributes {
                if let LinkAttribute::IfName(name) = attribute {
                    snapshot.links.insert(link.header.index, name.clone());
                }
            }
        }
        let mut addresses = handle.address().get().execute();
        while let Some(message) = addresses.try_next().await? {
            snapshot.addresses.extend(assigned(&message));
        }
        snapshot
            .addresses
            .sort_by_key(|assigned| assigned.net.addr().is_ipv6());
        for message in [
            RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                .table_id(0)
                .build(),
            RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .table_id(0)
                .build(),
        ] {
            let mut message = message;
            message.header.table = RouteHeader::RT_TABLE_UNSPEC;
            let mut routes = handle.route().get(message).execute();
            while let Some(message) = routes.try_next().await? {
                snapshot.routes.extend(flat(&message));
            }
        }
        for version in [IpVersion::V4, IpVersion::V6] {
            let mut rules = handle.rule().get(version).execute();
            while let Some(rule) = rules.try_next().await? {
                let table = rule
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        RuleAttribute::Table(table) => Some(*table),
                        _ => None,
                    })
                    .unwrap_or(u32::from(rule.header.table));
                snapshot.policy_routing |=
                    !matches!(table, TABLE_LOCAL | TABLE_MAIN | TABLE_DEFAULT);
            }
        }
        Ok(snapshot)
    }

    /// Whether istio-iptables would program IPv6 rules: the first address that is neither loopback
    /// nor link-local is IPv6, or with dual stack any is.
    #[must_use]
    pub fn captures_v6(&self, dual_stack: bool) -> bool {
        let mut candidates = self
            .addresses
            .iter()
            .map(|assigned| assigned.net.addr())
            .filter(|addr| match addr {
                IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
                IpAddr::V6(v6) => {
                    !v6.is_loopback()
                        && !v6.is_unicast_link_local()
                        && !Addr::from(*addr).is(Addr::SELF_V6)
                }
            });
        if dual_stack {
            candidates.any(|addr| addr.is_ipv6())
        } else {
            candidates.next().is_some_and(|addr| addr.is_ipv6())
        }
    }

    /// Whether an address is assigned.
    #[must_use]
    pub fn has_address(&self, addr: IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|assigned| assigned.net.addr() == addr)
    }

    /// Index of the loopback interface.
    #[must_use]
    pub fn loopback(&self) -> Option<u32> {
        self.links
            .iter()
            .find(|(_, name)| *name == "lo")
            .map(|(index, _)| *index)
    }

    /// The rows for one pod. `excluded` names the devices of the policy's excludeInterfaces.
    #[must_use]
    pub fn rows(&self, netns: u64, excluded: &[String]) -> HashMap<RouteId, Route> {
        let earliest = self.earliest_tables();
        let mut best: HashMap<IpNet, &FlatRoute> = HashMap::new();
        for route in &self.routes {
            // An earlier table that holds the whole prefix decides all of its destinations.
            let order = table_order(route.table);
            let mut wider = std::iter::successors(Some(route.destination), IpNet::supernet);
            if wider.any(|net| earliest.get(&net).is_some_and(|earlier| *earlier < order)) {
                continue;
            }
            let rank = |route: &FlatRoute| (table_order(route.table), route.metric);
            best.entry(route.destination)
                .and_modify(|known| {
                    if rank(route) < rank(known) {
                        *known = route;
                    }
                })
                .or_insert(route);
        }
        let crowded = best.len() > MAX_ROUTES;
        if crowded {
            // One pod may not fill the map for all. What stays is what tells the pod's own
            // addresses; everything else counts as reachable.
            best.retain(|_, route| route.kind == RouteKind::Local);
        }
        let mut rows: HashMap<RouteId, Route> = best
            .into_values()
            .map(|route| {
                (
                    route_id(netns, route.destination),
                    self.row(route, excluded),
                )
            })
            .collect();
        if self.policy_routing || crowded {
            for everywhere in ["0.0.0.0/0", "::/0"] {
                let everywhere: IpNet = everywhere.parse().expect("a valid prefix");
                let row = rows
                    .entry(route_id(netns, everywhere))
                    .or_insert(Route::NONE);
                if !row.is_unicast() {
                    *row = Route {
                        kind: RouteKind::Unicast as u32,
                        flags: 0,
                        ifindex: 0,
                        source: self.any_source(everywhere),
                    };
                }
            }
        }
        rows
    }

    /// For each prefix the first table that has it.
    fn earliest_tables(&self) -> HashMap<IpNet, u32> {
        let mut earliest = HashMap::new();
        for route in &self.routes {
            let order = table_order(route.table);
            let known = earliest.entry(route.destination).or_insert(order);
            *known = order.min(*known);
        }
        earliest
    }

    fn row(&self, route: &FlatRoute, excluded: &[String]) -> Route {
        // Packets to an own address leave by lo, whichever interface holds the address.
        let device = match route.kind {
            RouteKind::Local => Some("lo"),
            _ => self.links.get(&route.ifindex).map(String::as_str),
        };
        let position = device.and_then(|device| excluded.iter().position(|name| name == device));
        Route {
            kind: route.kind as u32,
            flags: position.map_or(0, |position| Route::excluding(position as u32)),
            ifindex: route.ifindex,
            source: self.source(route),
        }
    }

    /// The address the kernel gives an unbound socket: `inet_select_addr` for IPv4; for IPv6 the
    /// parts of RFC 6724 that addresses of one interface differ in.
    fn source(&self, route: &FlatRoute) -> Addr {
        if let Some(preferred) = route.preferred_source {
            return preferred.into();
        }
        let v6 = route.destination.addr().is_ipv6();
        if v6 && route.kind == RouteKind::Local {
            return route.destination.addr().into();
        }
        let mut own = self
            .addresses
            .iter()
            .filter(|assigned| assigned.usable && assigned.net.addr().is_ipv6() == v6);
        let on_device: Vec<_> = own
            .clone()
            .filter(|assigned| assigned.ifindex == route.ifindex)
            .collect();
        let towards = route.gateway.unwrap_or(route.destination.addr());
        on_device
            .iter()
            .find(|assigned| assigned.net.contains(&towards))
            .or_else(|| on_device.first())
            .copied()
            .or_else(|| own.find(|assigned| !assigned.net.addr().is_loopback()))
            .map_or(Addr::UNSPECIFIED, |assigned| assigned.net.addr().into())
    }

    fn any_source(&self, everywhere: IpNet) -> Addr {
        self.addresses
            .iter()
            .filter(|assigned| assigned.usable && !assigned.net.addr().is_loopback())
            .find(|assigned| assigned.net.addr().is_ipv6() == everywhere.addr().is_ipv6())
            .map_or(Addr::UNSPECIFIED, |assigned| assigned.net.addr().into())
    }
}

/// A [`RouteKey`] that can be compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId {
    netns: u64,
    destination: IpNet,
}

impl RouteId {
    /// The route a map key stands for; `None` for a key that no agent writes.
    #[must_use]
    pub fn of(key: &RouteKey) -> Option<Self> {
        let bits = key
            .prefix_len
            .checked_sub(RouteKey::host(0, key.addr).prefix_len - 128)?;
        let (addr, prefix) = match IpAddr::from(key.addr) {
            addr if key.family == Family::V4 as u32 && addr.is_ipv4() => {
                (addr, bits.checked_sub(V4_PREFIX_OFFSET)?)
            }
            addr if addr.is_ipv6() => (addr, bits),
            _ => return None,
        };
        Some(Self {
            netns: key.netns,
            destination: IpNet::new(addr, prefix.try_into().ok()?).ok()?,
        })
    }

    /// The map key.
    #[must_use]
    pub fn key(&self) -> RouteKey {
        let family = if self.destination.addr().is_ipv6() {
            Family::V6
        } else {
            Family::V4
        };
        RouteKey::new(
            self.netns,
            family,
            self.destination.network().into(),
            self.destination.prefix_len(),
        )
    }
}

fn route_id(netns: u64, destination: IpNet) -> RouteId {
    RouteId { netns, destination }
}

/// Order in which the tables are consulted.
fn table_order(table: u32) -> u32 {
    match table {
        TABLE_LOCAL => 0,
        TABLE_MAIN => 1,
        _ => 2,
    }
}

fn flat(message: &RouteMessage) -> Option<FlatRoute> {
    let default: IpAddr = match message.header.address_family {
        AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let flags = message.header.flags;
    if flags.contains(RouteFlags::Cloned) || flags.contains(RouteFlags::Dead) {
        return None;
    }
    let kind = match message.header.kind {
        RouteType::Local => RouteKind::Local,
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Broadcast | RouteType::Multicast => RouteKind::Group,
        // Anycast addresses are delivered locally.
        RouteType::Anycast => RouteKind::Local,
        _ => return None,
    };
    let mut route = FlatRoute {
        destination: IpNet::new_assert(default, 0),
        table: u32::from(message.header.table),
        metric: 0,
        kind,
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
    matches!(route.table, TABLE_LOCAL | TABLE_MAIN | TABLE_DEFAULT).then_some(route)
}

fn ip(addr: &RouteAddress) -> Option<IpAddr> {
    match addr {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

fn assigned(message: &AddressMessage) -> Option<AssignedAddress> {
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
