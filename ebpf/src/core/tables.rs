//! The decision's table lookups, in maps.

use sidetrack_common::{
    addr::{Addr, Family},
    decide::{self, Outbound, Tables},
    pod::{
        self, IfaceKey, IfaceRule, POD_BEFORE_SIDECAR, POD_ROUTE_RULES, Route, RouteKey, RouteKind,
    },
    policy::{List, OwnerKey, PortKey, RangeKey},
    route_rules::RoutedSocket,
};

use crate::maps::{self, Enrolled};

/// The tables of one pod.
pub struct PodTables {
    /// Network namespace cookie.
    pub netns: u64,
    /// What the pod's row says.
    pub pod: Enrolled,
    /// The view of the pod's routes, see [`PodTables::of_socket`].
    view: u32,
    /// The interface that the socket is bound to, 0 for none.
    device: u32,
    /// 0, which the verifier does not know: it walks what follows once for any route then.
    zero: u32,
}

impl PodTables {
    /// Those that a packet sees that enters the pod.
    #[inline(always)]
    pub fn of_packet(netns: u64, pod: Enrolled) -> Self {
        Self {
            netns,
            pod,
            view: 0,
            device: 0,
            zero: 0,
        }
    }

    /// Those that a socket sees which sends to an address. `zero` is 0, which the verifier does not know: a view that it knew would
    /// double the paths that it walks.
    #[inline(always)]
    pub fn of_socket(
        netns: u64,
        pod: Enrolled,
        (conn, device): (&Outbound, u32),
        zero: u32,
    ) -> Self {
        let mut view = zero;
        if pod.flags & POD_ROUTE_RULES != 0 {
            let destination = decide::effective_destination(conn, zero);
            let mut socket = RoutedSocket::of(conn);
            view = maps::route_view(netns, destination.family(), &socket);
            // IPv4 sockets that are not bound are routed once more, with the source that the first route has
            // (`ip_route_connect`).
            if !conn.is_bound(zero)
                && matches!(destination.family(), Family::V4)
                && let Some(route) = maps::route(&RouteKey::host((netns, view), destination))
            {
                socket.source = route.source;
                view = maps::route_view(netns, Family::V4, &socket);
            }
        }
        Self {
            netns,
            pod,
            view,
            device,
            zero,
        }
    }
}

impl Tables for PodTables {
    #[inline(always)]
    fn port(&self, list: List, port: u16) -> Option<u32> {
        maps::port_rule(&PortKey {
            policy: self.pod.policy,
            list: list as u16,
            port,
        })
    }

    #[inline(always)]
    fn range(&self, list: List, addr: Addr) -> Option<u32> {
        maps::range_rule(&RangeKey::host(self.pod.policy, list, addr))
    }

    #[inline(always)]
    fn owner(&self, list: List, id: u32) -> Option<u32> {
        maps::owner_rule(&OwnerKey {
            policy: self.pod.policy,
            list: list as u32,
            id,
        })
    }

    #[inline(always)]
    fn before_sidecar(&self) -> bool {
        self.pod.flags & POD_BEFORE_SIDECAR != 0 && maps::is_before_sidecar(self.netns)
    }

    #[inline(always)]
    fn route(&self, addr: Addr) -> Route {
        let route = maps::route(&RouteKey::host((self.netns, self.view), addr));
        let mut route = route.copied().unwrap_or(Route::NONE);
        if route.is_passed_over(self.device) {
            // What leaves by the other interface is excluded if that is.
            let key = IfaceKey {
                netns: self.netns,
                ifindex: self.device,
                pad: 0,
            };
            route.kind = RouteKind::Unicast as u32 ^ self.zero;
            route.flags = match maps::iface(&key) {
                Some(row) if row.rule == IfaceRule::Excluded as u32 => {
                    Route::excluding(row.position ^ self.zero)
                }
                _ => self.zero,
            };
        }
        route
    }

    #[inline(always)]
    fn is_own(&self, addr: Addr) -> bool {
        pod::may_be_own(self.pod.flags, addr) && self.route(addr).is_local()
    }
}
