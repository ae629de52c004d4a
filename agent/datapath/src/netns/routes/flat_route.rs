//! A route of a namespace, reduced to what decides.

use std::net::IpAddr;

use ipnet::IpNet;
use sidetrack_common::pod::RouteKind;

/// The table of addresses that are the namespace's own.
pub const TABLE_LOCAL: u32 = 255;
pub(super) const TABLE_MAIN: u32 = 254;
pub(super) const TABLE_DEFAULT: u32 = 253;

/// A route, reduced to what the rows need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlatRoute {
    pub destination: IpNet,
    pub table: u32,
    pub metric: u32,
    pub kind: RouteKind,
    pub ifindex: u32,
    /// Interfaces of the other hops of a multipath route that are alive. The kernel hashes each connection to one of all.
    pub other_hops: Vec<u32>,
    pub gateway: Option<IpAddr>,
    pub preferred_source: Option<IpAddr>,
}

/// No interface has this number, so that no list names it.
pub(super) const NO_INTERFACE: u32 = 0;

impl FlatRoute {
    /// A route of the same prefix that may lead anywhere.
    pub(super) fn anywhere(self) -> Self {
        Self {
            kind: RouteKind::Unicast,
            metric: 0,
            ifindex: NO_INTERFACE,
            other_hops: Vec::new(),
            gateway: None,
            ..self
        }
    }
}
