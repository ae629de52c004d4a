//! Flattens the routing tables into one row per prefix.

use std::{cmp::Reverse, collections::HashMap};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sidetrack_common::pod::{Route, RouteKind};
use sidetrack_policy::{interfaces, policy::ReturnRoute};

use super::{FlatRoute, MAX_ROUTES, RouteId, Snapshot, TABLE_LOCAL, TABLE_MAIN};

impl Snapshot {
    /// The rows for one pod. `excluded` is the policy's excludeInterfaces; `return_route` is what its policy needs,
    /// which leads no packets of applications elsewhere.
    ///
    /// Capped, so that one pod cannot fill the map for all. A pod with more than [`MAX_ROUTES`] routes
    /// keeps those to its own addresses; every other destination counts as reachable. In a pod with more
    /// addresses than that, nothing is known about any destination, and connections are refused.
    #[must_use]
    pub fn rows(
        &self,
        netns: u64,
        excluded: &[String],
        return_route: Option<ReturnRoute>,
    ) -> HashMap<RouteId, Route> {
        let mut deciding = Tables::new(&self.routes).deciding();
        let too_many = deciding.len() > MAX_ROUTES;
        if too_many {
            deciding.retain(|_, route| route.kind == RouteKind::Local);
        }
        if deciding.len() > MAX_ROUTES {
            return everything(netns, RouteKind::Unknown).collect();
        }
        let mut rows: HashMap<RouteId, Route> = deciding
            .into_iter()
            .map(|(prefix, route)| (RouteId::new(netns, prefix), self.row(route, excluded)))
            .collect();
        let is_other = |marked: &ReturnRoute| Some(*marked) != return_route;
        if self.policy_routing || self.marked.iter().any(is_other) || too_many {
            self.make_everything_reachable(netns, &mut rows);
        }
        rows
    }

    /// Whether the pod has more than its share.
    pub(super) fn note_about_routes(&self) -> Option<String> {
        let deciding = Tables::new(&self.routes).deciding();
        if deciding.len() <= MAX_ROUTES {
            return None;
        }
        let is_local = |route: &&&FlatRoute| route.kind == RouteKind::Local;
        Some(if deciding.values().filter(is_local).count() > MAX_ROUTES {
            format!(
                "it has more than {MAX_ROUTES} addresses, so its connections are refused (too-many-addresses)"
            )
        } else {
            format!(
                "it has more than {MAX_ROUTES} routes, so every destination but its own addresses counts as reachable"
            )
        })
    }

    fn make_everything_reachable(&self, netns: u64, rows: &mut HashMap<RouteId, Route>) {
        for default in defaults() {
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
        let position = device.and_then(|device| interfaces::position(excluded, device));
        Route {
            kind: route.kind as u32,
            flags: position.map_or(0, |position| Route::excluding(position as u32)),
            ifindex: route.ifindex,
            source: self.source(route),
        }
    }
}

/// A row of one kind for every destination.
fn everything(netns: u64, kind: RouteKind) -> impl Iterator<Item = (RouteId, Route)> {
    let row = Route {
        kind: kind as u32,
        ..Route::NONE
    };
    defaults().map(move |default| (RouteId::new(netns, default), row))
}

fn defaults() -> impl Iterator<Item = IpNet> {
    [Ipv4Net::default().into(), Ipv6Net::default().into()].into_iter()
}

/// The tables in the order in which the kernel consults them, each with the route that it takes for every
/// prefix.
struct Tables<'a>([HashMap<IpNet, &'a FlatRoute>; 2]);

impl<'a> Tables<'a> {
    fn new(routes: &'a [FlatRoute]) -> Self {
        let mut tables = [HashMap::new(), HashMap::new()];
        for route in routes {
            let Some(order) = table_order(route) else {
                continue;
            };
            tables[order]
                .entry(route.destination)
                .and_modify(|known: &mut &FlatRoute| {
                    // Of one prefix in a merged table, `local` comes first.
                    let rank = |route: &FlatRoute| (Reverse(route.table), route.metric);
                    if rank(route) < rank(known) {
                        *known = route;
                    }
                })
                .or_insert(route);
        }
        Self(tables)
    }

    /// The route that decides about a whole prefix, as far as no narrower one does: that of the longest
    /// match in the first table that has one. A throw route leads on to the next table, and is the answer
    /// itself if that has no match.
    fn decides(&self, prefix: IpNet) -> Option<&'a FlatRoute> {
        let mut thrown = None;
        for table in &self.0 {
            let mut wider = std::iter::successors(Some(prefix), IpNet::supernet);
            match wider.find_map(|net| table.get(&net).copied()) {
                Some(route) if route.kind == RouteKind::Throw => thrown = Some(route),
                Some(route) => return Some(route),
                None => {}
            }
        }
        thrown
    }

    /// For each prefix the route that decides. Prefixes that a wider one of an earlier table decides are
    /// left out.
    fn deciding(&self) -> HashMap<IpNet, &'a FlatRoute> {
        let mut deciding = HashMap::new();
        for (prefix, own) in self.0.iter().flatten() {
            let Some(route) = self.decides(*prefix) else {
                continue;
            };
            if route.destination == *prefix || own.kind == RouteKind::Throw {
                deciding.insert(*prefix, route);
            }
        }
        deciding
    }
}

/// Order in which the kernel consults a route's table; `None` if it does not.
///
/// For IPv4 `local` and `main` are one table in which the longest match wins, whichever it is of
/// (`fib_lookup` in include/net/ip_fib.h). They are two once a rule was added, also if it is gone again,
/// which no request shows. Then a wide route in `local` would win over a narrow one in `main`: as one table
/// the destination counts as off the pod, so that no connection bypasses the sidecar. IPv6 has two tables and
/// no rule for `default` (`fib6_rules_net_init`).
fn table_order(route: &FlatRoute) -> Option<usize> {
    let v6 = route.destination.addr().is_ipv6();
    match route.table {
        TABLE_LOCAL => Some(0),
        TABLE_MAIN => Some(usize::from(v6)),
        _ => (!v6).then_some(1),
    }
}
