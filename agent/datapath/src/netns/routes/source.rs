//! The source address the kernel picks for an unbound socket.

use ipnet::IpNet;
use sidetrack_common::{addr::Addr, pod::RouteKind};

use super::{AssignedAddress, Snapshot, flat_route::FlatRoute};

impl Snapshot {
    /// The source of a route: `inet_select_addr` for IPv4; for IPv6 the parts of RFC 6724 that addresses
    /// of one interface differ in.
    pub(super) fn source(&self, route: &FlatRoute) -> Addr {
        if let Some(preferred) = route.preferred_source {
            return preferred.into();
        }
        let v6 = route.destination.addr().is_ipv6();
        if v6 && route.kind == RouteKind::Local {
            return route.destination.addr().into();
        }
        let on_device: Vec<_> = self
            .usable(v6)
            .filter(|assigned| assigned.ifindex == route.ifindex)
            .collect();
        let next_hop = route.gateway.unwrap_or(route.destination.addr());
        on_device
            .iter()
            .find(|assigned| assigned.net.contains(&next_hop))
            .or_else(|| on_device.first())
            .map_or_else(
                || self.source_off_device(v6),
                |assigned| assigned.net.addr().into(),
            )
    }

    /// The source of a route to everywhere whose device is unknown.
    pub(super) fn source_of_default(&self, default: IpNet) -> Addr {
        self.source_off_device(default.addr().is_ipv6())
    }

    /// The first address that other hosts can reach, of any device.
    fn source_off_device(&self, v6: bool) -> Addr {
        self.usable(v6)
            .find(|assigned| !assigned.net.addr().is_loopback())
            .map_or(Addr::UNSPECIFIED, |assigned| assigned.net.addr().into())
    }

    fn usable(&self, v6: bool) -> impl Iterator<Item = &AssignedAddress> {
        self.addresses
            .iter()
            .filter(move |assigned| assigned.usable && assigned.net.addr().is_ipv6() == v6)
    }
}
