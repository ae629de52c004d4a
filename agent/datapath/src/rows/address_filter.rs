//! The filter of a pod's addresses, which spares most inbound connections a route lookup.

use std::{collections::HashMap, net::IpAddr};

use sidetrack_common::{
    pod::{POD_ANY_ADDRESS, Route, address_bit},
    target::{DEDICATED_V6, is_dedicated_v6},
};

use crate::netns::routes::RouteId;

/// Flags of the pod's row: a bit for each address that is local by these routes.
pub(super) fn of(routes: &HashMap<RouteId, Route>) -> u32 {
    let local = routes.iter().filter(|(_, route)| route.is_local());
    local.fold(0, |bits, (id, _)| {
        let destination = id.destination();
        let address: IpAddr = destination.addr();
        let prefix = destination.prefix_len();
        // Targets are the source of no TCP connection.
        let is_targets = prefix == DEDICATED_V6.1 && is_dedicated_v6(address.into());
        // The kernel takes the whole of 127.0.0.0/8 for loopback, and so does the decision before it asks.
        if address.is_loopback() || is_targets {
            bits
        } else if prefix == destination.max_prefix_len() {
            bits | address_bit(address.into())
        } else {
            bits | POD_ANY_ADDRESS
        }
    })
}

#[cfg(test)]
mod tests;
