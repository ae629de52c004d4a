//! An enrolled pod's routes, read from the kernel's maps.

use sidetrack_common::{
    addr::Addr,
    pod::{Route, RouteKey},
};
use sidetrack_policy::rules::Routes;

use sidetrack_datapath::kernel::maps::Maps;

/// Routes of an enrolled pod: the kernel's own copy.
#[derive(Debug)]
pub struct MapRoutes<'a> {
    /// Cookie of the pod's network namespace.
    pub netns: u64,
    /// The kernel's maps.
    pub maps: &'a Maps,
}

impl Routes for MapRoutes<'_> {
    fn route(&self, addr: Addr) -> Route {
        let row = self.maps.routes.get(&RouteKey::host(self.netns, addr));
        row.ok().flatten().unwrap_or(Route::NONE)
    }
}
