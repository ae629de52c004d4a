//! Flattens the routing tables into one row per prefix, for each view that the rules give sockets.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    iter,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sidetrack_common::{
    pod::{Route, RouteKind},
    route_rules::{MAX_SELECTORS, RouteSelector},
};
use sidetrack_policy::{interfaces, policy::ReturnRoute};

use super::{
    MAX_ROUTES, RouteId, Snapshot,
    flat_route::{FlatRoute, TABLE_LOCAL, TABLE_MAIN},
    rules::{Action, Followed, Rule},
};

/// What the kernel programs are to have of a pod's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRoutes {
    /// The rows of all views.
    pub rows: HashMap<RouteId, Route>,
    /// What chooses between views, for IPv4 and IPv6; `None` where there is one view.
    pub selectors: [Option<[RouteSelector; MAX_SELECTORS]>; 2],
    /// What people should know about them.
    pub note: Option<String>,
}

/// The route that decides, by view and prefix.
type Deciding = HashMap<(u32, IpNet), FlatRoute>;

impl Snapshot {
    /// The rows for one pod. `excluded` is the policy's excludeInterfaces; `return_route` is what its policy needs,
    /// which leads no packets of applications elsewhere.
    ///
    /// Capped, so that one pod cannot fill the map for all. A pod with more than `most` rows
    /// keeps those to its own addresses; every other destination counts as reachable. In a pod with more
    /// addresses than that, nothing is known about any destination, and connections are refused.
    #[must_use]
    pub fn rows(
        &self,
        netns: u64,
        excluded: &[String],
        return_route: Option<ReturnRoute>,
        most: usize,
    ) -> PodRoutes {
        let followed = FAMILIES.map(|is_v6| self.rules.followed(is_v6, return_route));
        let row = |((view, prefix), route): (&(u32, IpNet), &FlatRoute)| {
            let id = RouteId::new((netns, *view), *prefix);
            (id, self.row(route, excluded))
        };
        if let Some(deciding) = self.deciding(&followed, most) {
            let mut rows = deciding.iter().map(row).collect();
            for is_v6 in FAMILIES {
                if self.rules.is_unclear(is_v6) {
                    self.make_everything_reachable(netns, is_v6, &mut rows);
                }
            }
            let selectors = followed.map(|rules| {
                let has_views = rules.views().len() > 1;
                rules.selectors().filter(|_| has_views)
            });
            let is_unclear = FAMILIES.map(|is_v6| self.rules.is_unclear(is_v6));
            return PodRoutes {
                rows,
                selectors,
                note: is_unclear.contains(&true).then(|| UNCLEAR.to_owned()),
            };
        }
        let own = self.own_routes();
        let of_quota = if most < MAX_ROUTES {
            ", which is what the quota of its namespace allows"
        } else {
            ""
        };
        let mut rows: HashMap<RouteId, Route>;
        let note;
        if own.len() > most {
            rows = everything(netns, RouteKind::Unknown).collect();
            note = format!(
                "it has more than {most} addresses{of_quota}, so its connections are refused (too-many-addresses)"
            );
        } else {
            rows = own.iter().map(row).collect();
            for is_v6 in FAMILIES {
                self.make_everything_reachable(netns, is_v6, &mut rows);
            }
            note = format!(
                "it has more than {most} routes{of_quota}, or rules of policy routing that make more of them, so every destination but its own addresses counts as reachable"
            );
        }
        PodRoutes {
            rows,
            note: Some(note),
            ..PodRoutes::default()
        }
    }

    /// The deciding routes of all views; `None` if they are more than a pod may have.
    fn deciding(&self, followed: &[Followed; 2], most: usize) -> Option<Deciding> {
        let mut deciding = Deciding::new();
        let mut looks = MAX_LOOKS;
        for rules in followed {
            rules.selectors()?;
            for view in rules.views() {
                let tables = Tables::new(&self.routes, rules.in_view(view), rules.is_usual);
                tables.add_to(&mut deciding, view, &mut looks, |_| true);
                if deciding.len() > most || looks == 0 {
                    return None;
                }
            }
        }
        Some(deciding)
    }

    /// The routes to the pod's own addresses, in the tables that every namespace has.
    fn own_routes(&self) -> Deciding {
        let mut own = Deciding::new();
        for is_v6 in FAMILIES {
            let usual = Followed::usual(is_v6);
            let tables = Tables::new(&self.routes, usual.in_view(0), true);
            let is_local = |route: &FlatRoute| route.kind == RouteKind::Local;
            tables.add_to(&mut own, 0, &mut MAX_LOOKS.clone(), is_local);
        }
        own
    }

    fn make_everything_reachable(
        &self,
        netns: u64,
        is_v6: bool,
        rows: &mut HashMap<RouteId, Route>,
    ) {
        let default = default(is_v6);
        let row = rows
            .entry(RouteId::new((netns, 0), default))
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

    fn row(&self, route: &FlatRoute, excluded: &[String]) -> Route {
        let position = |device| interfaces::position(excluded, device);
        let of_hop = |ifindex| self.links.get(ifindex).and_then(|device| position(device));
        let position = match route.kind {
            // Packets to a local address leave by lo, whichever interface has the address.
            RouteKind::Local => position("lo"),
            // One hop that is captured is enough: what leaves by an excluded one then is as well.
            _ if !route.other_hops.iter().all(|hop| of_hop(hop).is_some()) => None,
            _ => of_hop(&route.ifindex),
        };
        Route {
            kind: route.kind as u32,
            flags: position.map_or(0, |position| Route::excluding(position as u32)),
            ifindex: route.ifindex,
            source: self.source(route),
        }
    }
}

/// Prefixes that are looked up for one pod, over all tables and views. Each takes up to 129 steps in each table, and a pod
/// can have many that decide nothing.
const MAX_LOOKS: usize = 4 * MAX_ROUTES;

/// What to know of a pod whose routing is not followed.
const UNCLEAR: &str = "it has routes or rules that choose by more than addresses, marks and users, so every destination that no route decides counts as reachable";

/// IPv4 and IPv6.
const FAMILIES: [bool; 2] = [false, true];

/// The prefix of all addresses.
pub(super) fn default(is_v6: bool) -> IpNet {
    if is_v6 {
        Ipv6Net::default().into()
    } else {
        Ipv4Net::default().into()
    }
}

/// A row of one kind for every destination.
fn everything(netns: u64, kind: RouteKind) -> impl Iterator<Item = (RouteId, Route)> {
    let row = Route {
        kind: kind as u32,
        ..Route::NONE
    };
    FAMILIES
        .map(|is_v6| (RouteId::new((netns, 0), default(is_v6)), row))
        .into_iter()
}

/// What the kernel consults for the sockets of one view, in its order.
struct Tables<'a> {
    tables: Vec<Table<'a>>,
    /// Whether the rules are those that every namespace starts with.
    is_usual: bool,
}

/// One table, with the route that it takes for every prefix.
#[derive(Default)]
struct Table<'a> {
    routes: HashMap<IpNet, &'a FlatRoute>,
    /// The destinations that the rule is for.
    within: Option<IpNet>,
    /// Routes of prefixes up to this length are passed over.
    suppressed: Option<u8>,
}

impl<'a> Tables<'a> {
    /// For IPv4 `local` and `main` are one table in which the longest match wins, whichever it is of
    /// (`fib_lookup` in include/net/ip_fib.h). They are two once a rule was added, also if it is gone again,
    /// which no request shows. Then a wide route in `local` would win over a narrow one in `main`: as one table
    /// the destination counts as off the pod, so that no connection bypasses the sidecar.
    fn new(routes: &'a [FlatRoute], rules: impl Iterator<Item = &'a Rule>, is_usual: bool) -> Self {
        let mut tables: Vec<Table<'_>> = Vec::new();
        for rule in rules {
            let mut table = Table {
                within: rule.within,
                ..Table::default()
            };
            match &rule.action {
                Action::Fail(route) => table.add(route),
                Action::Table {
                    table: number,
                    suppressed,
                } => {
                    table.suppressed = *suppressed;
                    let is_merged = is_usual && !rule.is_v6 && *number == TABLE_MAIN;
                    if is_merged && let Some(local) = tables.pop() {
                        table = local;
                    }
                    let own = routes.iter().filter(|route| {
                        route.table == *number && route.destination.addr().is_ipv6() == rule.is_v6
                    });
                    own.for_each(|route| table.add(route));
                }
            }
            tables.push(table);
        }
        Self { tables, is_usual }
    }

    /// The route that decides about a whole prefix, as far as no narrower one does: that of the longest
    /// match in the first table that has one. A throw route leads on to the next table, and is the answer
    /// itself if that has no match.
    fn decides(&self, prefix: IpNet) -> Option<&'a FlatRoute> {
        let mut thrown = None;
        for table in &self.tables {
            match table.finds(prefix) {
                Some(route) if route.kind == RouteKind::Throw => thrown = Some(route),
                Some(route) => return Some(route),
                None => {}
            }
        }
        thrown
    }

    /// Adds for each prefix the route that decides, if it `counts`. Where the rules are the usual ones, prefixes that a wider one of an
    /// earlier table decides are omitted.
    /// Each takes one of the `looks`.
    fn add_to(
        &self,
        deciding: &mut Deciding,
        view: u32,
        looks: &mut usize,
        counts: impl Fn(&FlatRoute) -> bool,
    ) {
        let prefixes = self.tables.iter().flat_map(|table| {
            let own = table.routes.iter();
            let own = own.map(|(prefix, route)| (*prefix, route.kind == RouteKind::Throw));
            own.chain(table.within.map(|within| (within, false)))
        });
        for (prefix, is_thrown) in prefixes.collect::<BTreeSet<_>>() {
            *looks = looks.saturating_sub(1);
            if let Some(route) = self.decides(prefix)
                && counts(route)
                && (route.destination == prefix || is_thrown || !self.is_usual)
            {
                deciding.insert((view, prefix), route.clone());
            }
            // The caller takes no more.
            if deciding.len() > MAX_ROUTES || *looks == 0 {
                return;
            }
        }
    }
}

impl<'a> Table<'a> {
    fn add(&mut self, route: &'a FlatRoute) {
        self.routes
            .entry(route.destination)
            .and_modify(|known: &mut &FlatRoute| {
                // Of one prefix in a merged table, `local` comes first.
                let rank = |route: &FlatRoute| (Reverse(route.table == TABLE_LOCAL), route.metric);
                if rank(route) < rank(known) {
                    *known = route;
                }
            })
            .or_insert(route);
    }

    /// The longest match, unless the rule is for other destinations or passes it over.
    fn finds(&self, prefix: IpNet) -> Option<&'a FlatRoute> {
        if self.within.is_some_and(|within| !within.contains(&prefix)) {
            return None;
        }
        let mut wider = iter::successors(Some(prefix), IpNet::supernet);
        let route = wider.find_map(|net| self.routes.get(&net).copied())?;
        let is_suppressed = |length| route.destination.prefix_len() <= length;
        (!self.suppressed.is_some_and(is_suppressed)).then_some(route)
    }
}
