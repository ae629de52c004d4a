//! A pod's routing tables in the form the kernel programs need. For each prefix a row holds whether packets
//! stay in the pod, leave it or are rejected, by which device and from which source address.
//!
//! The tables are read whole ([`dump`]) and flattened ([`flatten`]) in the order of the namespace's rules: by default
//! `local` and `main` before `default`. A throw route leads on to the next table. Where rules choose by source, mark or user of
//! a socket ([`rules`]), there are rows for each set of them that may apply. With rules that choose by anything else, every
//! destination without a row of its own counts as reachable, so that no connection bypasses the sidecar.

mod dump;
pub mod entrances;
mod flat_route;
mod flatten;
mod id;
mod rules;
mod source;

use std::{collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use sidetrack_common::{
    addr::Addr,
    pod::{LOOPBACK_IFINDEX, RouteKind},
    target::DEDICATED_V6,
};

use sidetrack_policy::{Policy, policy::ReturnRoute};

use self::{entrances::Entrances, flat_route::FlatRoute, rules::Rules};
pub use self::{flat_route::TABLE_LOCAL, flatten::PodRoutes, id::RouteId};

/// Routes that a pod may have of [`ROUTE_CAPACITY`](sidetrack_common::names::ROUTE_CAPACITY).
pub const MAX_ROUTES: usize = 2048;

/// Interfaces, addresses and routes of a network namespace at one time.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Interface names by index.
    pub links: HashMap<u32, String>,
    /// Assigned addresses, in the kernel's order: all IPv4, then all IPv6.
    pub addresses: Vec<AssignedAddress>,
    routes: Vec<FlatRoute>,
    /// What chooses between the tables.
    rules: Rules,
    /// The rules of return routes that sidetrack added.
    pub added_rules: Vec<ReturnRoute>,
    /// Where packets for other addresses may enter.
    pub entrances: Entrances,
}

/// An address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignedAddress {
    /// The address and its subnet.
    pub net: IpNet,
    /// The interface.
    pub ifindex: u32,
    /// Whether the kernel picks it as a source on its own.
    usable: bool,
}

impl Snapshot {
    /// Whether the mesh's own rules would be there for IPv6.
    #[must_use]
    pub fn captures_v6(&self, policy: &Policy) -> bool {
        policy.captures_v6(self.addresses.iter().map(|assigned| assigned.net.addr()))
    }

    /// Whether an address is assigned.
    #[must_use]
    pub fn has_address(&self, addr: IpAddr) -> bool {
        self.addresses
            .iter()
            .any(|assigned| assigned.net.addr() == addr)
    }

    /// Whether nothing in the namespace has the addresses of dedicated IPv6 targets, nor part of them.
    #[must_use]
    pub fn lacks_target_route(&self) -> bool {
        let (first, prefix) = DEDICATED_V6;
        let targets = IpNet::new(first.into(), prefix);
        targets.is_ok_and(|targets| {
            let mut routes = self.routes.iter();
            !routes.any(|route| targets.contains(&route.destination))
        })
    }

    /// The route of these targets has been added.
    pub fn add_target_route(&mut self) {
        let (first, prefix) = DEDICATED_V6;
        if let Ok(destination) = IpNet::new(first.into(), prefix) {
            self.routes.push(FlatRoute {
                destination,
                table: TABLE_LOCAL,
                metric: 0,
                kind: RouteKind::Local,
                ifindex: LOOPBACK_IFINDEX,
                other_hops: Vec::new(),
                gateway: None,
                preferred_source: Some(Addr::LOOPBACK_V6.into()),
            });
        }
    }
}

#[cfg(test)]
mod tests;
