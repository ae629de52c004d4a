//! An enrolled pod's routes, read from the kernel's maps.

use sidetrack_common::{
    addr::{Addr, Family},
    pod::{Route, RouteKey},
    route_rules::{RoutedSocket, SelectorsKey, view},
};
use sidetrack_policy::rules::Routes;

use sidetrack_datapath::kernel::maps::Maps;

/// Routes of an enrolled pod: the kernel's own copy.
#[derive(Debug)]
pub struct MapRoutes<'a> {
    /// Cookie of the pod's network namespace.
    pub netns: u64,
    /// The socket that connects.
    pub socket: RoutedSocket,
    /// The kernel's maps.
    pub maps: &'a Maps,
}

impl MapRoutes<'_> {
    fn in_view(&self, socket: &RoutedSocket, addr: Addr) -> Route {
        let selectors = self
            .maps
            .selectors
            .get(&SelectorsKey::new(self.netns, addr.family()));
        let selectors = selectors.ok().flatten();
        let view = selectors.map_or(0, |selectors| view(&selectors, socket, |number| number));
        let row = self
            .maps
            .routes
            .get(&RouteKey::host((self.netns, view), addr));
        row.ok().flatten().unwrap_or(Route::NONE)
    }
}

impl Routes for MapRoutes<'_> {
    fn route(&self, addr: Addr) -> Route {
        let route = self.in_view(&self.socket, addr);
        let is_routed_again = self.socket.source.is_unspecified() && addr.family() == Family::V4;
        if !is_routed_again || route == Route::NONE {
            return route;
        }
        let source = route.source;
        self.in_view(
            &RoutedSocket {
                source,
                ..self.socket
            },
            addr,
        )
    }
}
