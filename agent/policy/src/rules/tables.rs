//! The decision's tables in userspace: a policy's lists, and routes from wherever they are known.

use std::net::IpAddr;

use sidetrack_common::{
    addr::{Addr, Family},
    decide::Tables,
    dns::DnsBlock,
    pod::{Route, RouteKind},
    policy::List,
};

use crate::policy::{InboundPorts, OutboundRanges, Policy};

/// Where routes are looked up.
pub trait Routes {
    /// The pod's route to an address.
    fn route(&self, addr: Addr) -> Route;
}

/// A policy's lists and a pod's routes.
#[derive(Debug)]
pub struct ListTables<'a, R> {
    /// The policy.
    pub policy: &'a Policy,
    /// The routes.
    pub routes: R,
    /// Whether the pod's outbound connections bypass its sidecar, which has not listened yet.
    pub before_sidecar: bool,
}

impl<R: Routes> Tables for ListTables<'_, R> {
    fn port(&self, list: List, port: u16) -> Option<u32> {
        if list == List::Dns {
            return self.policy.dns_block().map(DnsBlock::to_bits);
        }
        let ports: &[u16] = match list {
            List::OutPortExcluded => &self.policy.excluded_outbound_ports,
            List::OutPortIncluded => &self.policy.included_outbound_ports,
            List::InPort => match &self.policy.inbound {
                InboundPorts::None => &[],
                InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports,
            },
            _ => &[],
        };
        position(ports, |entry| *entry == port)
    }

    fn range(&self, list: List, addr: Addr) -> Option<u32> {
        if list == List::DnsServer {
            let ip = IpAddr::from(addr);
            return position(&self.policy.dns_ranges(), |range| range.contains(&ip));
        }
        let ranges: &[ipnet::IpNet] = match (list, &self.policy.outbound) {
            (List::RangeExcluded, _) => &self.policy.excluded_ranges,
            (List::RangeIncluded, OutboundRanges::Only(only)) => only,
            _ => &[],
        };
        let ip = IpAddr::from(addr);
        position(ranges, |range| range.contains(&ip))
    }

    fn owner(&self, list: List, id: u32) -> Option<u32> {
        let ids: &[u32] = match list {
            List::MoreProxyUids => &self.policy.proxy_uids,
            List::MoreProxyGids => &self.policy.proxy_gids,
            List::GroupIncluded => self.policy.included_groups.as_deref().unwrap_or_default(),
            List::GroupExcluded => &self.policy.excluded_groups,
            _ => &[],
        };
        position(ids, |entry| *entry == id)
    }

    fn route(&self, addr: Addr) -> Route {
        self.routes.route(addr)
    }

    fn before_sidecar(&self) -> bool {
        self.before_sidecar
    }
}

fn position<T>(entries: &[T], wanted: impl Fn(&T) -> bool) -> Option<u32> {
    entries
        .iter()
        .position(wanted)
        .map(|position| position as u32)
}

/// Routes as far as a manifest has them: loopback and the pod's own addresses stay in the pod,
/// everything else leaves it.
#[derive(Clone, Debug, Default)]
pub struct KnownRoutes {
    /// The pod's addresses.
    pub own: Vec<IpAddr>,
}

impl Routes for KnownRoutes {
    fn route(&self, addr: Addr) -> Route {
        let route = |kind: RouteKind, source: Addr| Route {
            kind: kind as u32,
            source,
            ..Route::NONE
        };
        let own = self.own.iter().any(|own| Addr::from(*own).is(addr));
        let loopback = addr.is_loopback() || addr.is(Addr::SELF_V6);
        match addr.family() {
            Family::V4 if loopback => route(RouteKind::Local, Addr::LOOPBACK_V4),
            _ if own || loopback => route(RouteKind::Local, addr),
            family => {
                let source = self.own.iter().copied().map(Addr::from);
                let source = source.into_iter().find(|own| own.family() == family);
                route(RouteKind::Unicast, source.unwrap_or(Addr::UNSPECIFIED))
            }
        }
    }
}

#[cfg(test)]
mod tests;
