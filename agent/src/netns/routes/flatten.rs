//! Flattens the routing tables into one row per prefix.

use std::collections::HashMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sidetrack_common::pod::{Route, RouteKind};

use super::{FlatRoute, RouteId, Snapshot, TABLE_LOCAL, TABLE_MAIN};

/// Routes a pod may have in the map; ROUTE_BY_POD holds 262,144 for all pods together.
const MAX_ROUTES: usize = 2048;

impl Snapshot {
    /// The rows for one pod. `excluded` names the devices of the policy's excludeInterfaces.
    #[must_use]
    pub fn rows(&self, netns: u64, excluded: &[String]) -> HashMap<RouteId, Route> {
        let mut deciding = deciding_routes(&self.routes);
        let too_many = deciding.len() > MAX_ROUTES;
        if too_many {
            // Capped so that one pod cannot fill the map for all. The rows that mark the pod's own
            // addresses stay; every other destination counts as reachable.
            deciding.retain(|_, route| route.kind == RouteKind::Local);
        }
        let mut rows: HashMap<RouteId, Route> = deciding
            .into_values()
            .map(|route| {
                let id = RouteId::new(netns, route.destination);
                (id, self.row(route, excluded))
            })
            .collect();
        if self.policy_routing || too_many {
            self.make_everything_reachable(netns, &mut rows);
        }
        rows
    }

    fn make_everything_reachable(&self, netns: u64, rows: &mut HashMap<RouteId, Route>) {
        let defaults = [Ipv4Net::default().into(), Ipv6Net::default().into()];
        for default in defaults {
            let row = rows
                .entry(RouteId::new(netns, default))
                .or_insert(Route::NONE);
            if !row.is_unicast() {
                *row = Route {
                    kind: RouteKind::Unicast as u32,
                    flags: 0,
                    ifindex: 0,
                    source: self.source_of_default(default),
                };
            }
        }
    }

    fn row(&self, route: &FlatRoute, excluded: &[String]) -> Route {
        // Packets to a local address leave by lo, whichever interface has the address.
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
}

/// For each prefix the route that decides: that of the first table, and in it the one with the lowest
/// metric. Prefixes inside a wider prefix of an earlier table are left out.
fn deciding_routes(routes: &[FlatRoute]) -> HashMap<IpNet, &FlatRoute> {
    let first_tables = first_tables(routes);
    let mut deciding: HashMap<IpNet, &FlatRoute> = HashMap::new();
    for route in routes {
        // An earlier table that holds the whole prefix decides all of its destinations.
        let order = table_order(route.table);
        let mut wider = std::iter::successors(Some(route.destination), IpNet::supernet);
        if wider.any(|net| first_tables.get(&net).is_some_and(|first| *first < order)) {
            continue;
        }
        let rank = |route: &FlatRoute| (table_order(route.table), route.metric);
        deciding
            .entry(route.destination)
            .and_modify(|known| {
                if rank(route) < rank(known) {
                    *known = route;
                }
            })
            .or_insert(route);
    }
    deciding
}

/// For each prefix the first table that has it.
fn first_tables(routes: &[FlatRoute]) -> HashMap<IpNet, u32> {
    let mut first = HashMap::new();
    for route in routes {
        let order = table_order(route.table);
        let known = first.entry(route.destination).or_insert(order);
        *known = order.min(*known);
    }
    first
}

/// Order in which the kernel consults the tables.
fn table_order(table: u32) -> u32 {
    match table {
        TABLE_LOCAL => 0,
        TABLE_MAIN => 1,
        _ => 2,
    }
}
