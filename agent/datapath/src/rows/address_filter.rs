//! The filter of a pod's addresses, which spares most inbound connections a route lookup.

use std::{collections::HashMap, net::IpAddr};

use sidetrack_common::{
    pod::{POD_ANY_ADDRESS, Route, address_bit},
    target::is_dedicated,
};

use crate::netns::routes::RouteId;

/// Flags of the pod's row: a bit for each address that is local by these routes.
pub(super) fn of(routes: &HashMap<RouteId, Route>) -> u32 {
    let local = routes.iter().filter(|(_, route)| route.is_local());
    local.fold(0, |bits, (id, _)| {
        let destination = id.destination();
        let address: IpAddr = destination.addr();
        // The kernel takes the whole of 127.0.0.0/8 for loopback, and so does the decision before it asks. Targets are the
        // source of no TCP connection.
        if address.is_loopback() || is_dedicated(address.into()) {
            bits
        } else if destination.prefix_len() == destination.max_prefix_len() {
            bits | address_bit(address.into())
        } else {
            bits | POD_ANY_ADDRESS
        }
    })
}

#[cfg(test)]
mod tests;
