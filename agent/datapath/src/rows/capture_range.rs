//! Whether a pod can reach its sidecar by the addresses that redirected connections are sent to.

use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use sidetrack_common::{
    addr::Addr,
    pod::{LOOPBACK_IFINDEX, Route},
    target::{DEDICATED, DEDICATED_V6, SHARED},
};

use crate::netns::routes::RouteId;

/// Whether all targets are local to the pod: 127.0.0.0/8 is, unless somebody changed its routes.
pub(super) fn is_local(routes: &HashMap<RouteId, Route>) -> bool {
    [DEDICATED, SHARED]
        .into_iter()
        .all(|range| is_range_local(range, routes))
}

/// Whether all dedicated IPv6 targets are local to the pod, by the one route that the agent adds.
pub(super) fn is_local_v6(routes: &HashMap<RouteId, Route>) -> bool {
    let (first, prefix) = DEDICATED_V6;
    let Ok(range) = IpNet::new(IpAddr::from(first), prefix) else {
        return false;
    };
    let mut within = routes
        .iter()
        .filter(|(id, _)| id.is_in_first_view() && range.contains(&id.destination()));
    let only = within.next().filter(|_| within.next().is_none());
    only.is_some_and(|(id, route)| {
        id.destination() == range && route.is_local() && route.ifindex == LOOPBACK_IFINDEX
    })
}

fn is_range_local((first, prefix): (Addr, u8), routes: &HashMap<RouteId, Route>) -> bool {
    let Ok(range) = IpNet::new(IpAddr::from(first), prefix) else {
        return false;
    };
    let covering = routes
        .iter()
        .filter(|(id, _)| id.destination().contains(&range))
        .max_by_key(|(id, _)| id.destination().prefix_len());
    let mut within = routes
        .iter()
        .filter(|(id, _)| range.contains(&id.destination()));
    let is_on_lo = |route: &Route| route.is_local() && route.ifindex == LOOPBACK_IFINDEX;
    covering.is_some_and(|(_, route)| is_on_lo(route)) && within.all(|(_, route)| route.is_local())
}

#[cfg(test)]
mod tests;
