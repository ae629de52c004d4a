//! The decision's table lookups, in maps.

use sidetrack_common::{
    addr::Addr,
    decide::Tables,
    pod::{self, POD_BEFORE_SIDECAR, Route, RouteKey},
    policy::{List, OwnerKey, PortKey, RangeKey},
};

use crate::maps::{self, Enrolled};

/// The tables of one pod.
pub struct PodTables {
    /// Network namespace cookie.
    pub netns: u64,
    /// What the pod's row says.
    pub pod: Enrolled,
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
        maps::route(&RouteKey::host(self.netns, addr))
            .copied()
            .unwrap_or(Route::NONE)
    }

    #[inline(always)]
    fn is_own(&self, addr: Addr) -> bool {
        pod::may_be_own(self.pod.flags, addr) && self.route(addr).is_local()
    }
}
