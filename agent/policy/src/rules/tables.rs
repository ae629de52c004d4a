//! The decision's tables in userspace: a policy's lists, and routes from wherever they are known.

use std::net::IpAddr;

use ipnet::IpNet;

use sidetrack_common::{
    addr::{Addr, Family},
    decide::Tables,
    dns::DnsBlock,
    pod::{Route, RouteKind},
    policy::List,
};

use crate::{
    exclusions::{Fold, Span},
    policy::{InboundPorts, OutboundRanges, Policy},
};

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
        let ports: &[Span] = match list {
            List::OutPortExcluded => &self.policy.excluded_outbound_ports,
            List::OutPortIncluded => &self.policy.included_outbound_ports,
            List::InPort => match &self.policy.inbound {
                InboundPorts::None => &[],
                InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports,
            },
            _ => &[],
        };
        position(ports, |entry| entry.contains(port.into()))
    }

    fn range(&self, list: List, addr: Addr) -> Option<u32> {
        let policy = self.policy;
        let number = u32::from_be(addr.to_v4_be());
        let of_owners = |index: usize| Fold::Bits.value(&policy.owner_bits()[index], number);
        let of_ports = |valued: &[(Span, u32)]| Fold::First.value(valued, number);
        let exclusions = &policy.exclusions;
        let (ranges, servers): (&[IpNet], _) = match (list, &policy.outbound) {
            (List::OwnerExcluded, _) => return of_owners(0),
            (List::OwnerTcpPort, _) => return of_owners(1),
            (List::OwnerUdpPort, _) => return of_owners(2),
            (List::InPortRangeExcluded, _) => {
                return of_ports(&policy.excluded_inbound_positions());
            }
            (List::OutPortRangeExcluded, _) => {
                return of_ports(&policy.excluded_outbound_positions());
            }
            (List::DestinationExcluded, _) => (&exclusions.destinations, None),
            (List::SourceExcluded | List::SourceExcludedLate, _) => (&exclusions.sources, None),
            (List::DnsServer, _) => (&[], Some(policy.dns_ranges())),
            (List::RangeExcluded, _) => (&policy.excluded_ranges, None),
            (List::RangeIncluded, OutboundRanges::Only(only)) => (only, None),
            _ => (&[], None),
        };
        let ip = IpAddr::from(addr);
        position(servers.as_deref().unwrap_or(ranges), |range| {
            range.contains(&ip)
        })
    }

    fn owner(&self, list: List, id: u32) -> Option<u32> {
        let mark = self.policy.dialect.proxy_mark();
        let ids: &[u32] = match list {
            List::ProxyMark => mark.as_slice(),
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
