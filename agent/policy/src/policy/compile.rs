//! A policy as the rows the kernel reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use sidetrack_common::{
    addr::Addr,
    dns::DNS_PORT,
    pod::{IfaceRow, IfaceRule},
    policy::{
        DIALECT_DNS_PASSES_LOCAL, DIALECT_LO_UNTOUCHED, DIALECT_LOCAL_CAPTURED, DIALECT_TUNNEL_IN,
        InboundMode, List, NO_ID, Policy as Row,
    },
};

use super::{InboundPorts, Mode, OutboundRanges, Policy, ReturnRoute};
use crate::{
    compiled::{CompiledPolicy, Lists},
    dialect::Dialect,
    exclusions::{Fold, Span, is_ranged},
    ids::{IdMaps, UnknownId},
    interfaces,
    mesh_name::MeshName,
};

impl Policy {
    /// The rows for the kernel.
    #[must_use]
    pub fn compile(&self) -> CompiledPolicy {
        let (mut ports, mut ranges, mut owners) =
            (Ports::default(), BTreeMap::new(), BTreeMap::new());
        let inbound = match &self.inbound {
            InboundPorts::None => InboundMode::Off,
            InboundPorts::AllExcept(except) => {
                if !self.excludes_by_range(except) {
                    ports.put(List::InPort, except);
                }
                InboundMode::AllExcept
            }
            InboundPorts::Only(only) => {
                ports.put(List::InPort, only);
                InboundMode::Listed
            }
        };
        match self.excludes_by_range(&self.excluded_outbound_ports) {
            true => ports.put_dns(&self.excluded_outbound_ports),
            false => ports.put(List::OutPortExcluded, &self.excluded_outbound_ports),
        }
        ports.put(List::OutPortIncluded, &self.included_outbound_ports);
        put(&mut ranges, List::RangeExcluded, &self.excluded_ranges);
        let outbound_all = match &self.outbound {
            OutboundRanges::All => true,
            OutboundRanges::Only(only) => {
                put(&mut ranges, List::RangeIncluded, only);
                false
            }
        };
        put(&mut ranges, List::DnsServer, &self.dns_ranges());
        // The row has the first owner. In the list it only keeps the positions of the others.
        if self.proxy_uids.len() > 1 {
            put(&mut owners, List::MoreProxyUids, &self.proxy_uids);
        }
        if self.proxy_gids.len() > 1 {
            put(&mut owners, List::MoreProxyGids, &self.proxy_gids);
        }
        if let Some(groups) = &self.included_groups {
            put(&mut owners, List::GroupIncluded, groups);
        }
        put(&mut owners, List::GroupExcluded, &self.excluded_groups);
        if let Some(mark) = self.dialect.proxy_mark() {
            put(&mut owners, List::ProxyMark, &[mark]);
        }
        let numbers = self.exclusion_lists(&mut ranges);
        let row = Row {
            outbound_port: self.outbound_port,
            inbound_port: self.inbound_port,
            tunnel_port: self.tunnel_port,
            inbound: inbound as u8,
            outbound_all: u8::from(outbound_all),
            loopback_included: u8::from(self.includes_loopback()),
            loopback_v4_prefix: self.loopback_v4.prefix_len(),
            dialect: self.dialect_bits(),
            virtual_interfaces: u8::from(!self.virtual_interfaces.is_empty()),
            loopback_v4: self.loopback_v4.network().octets(),
            lists: 0,
            proxy_uid: self.proxy_uids.first().copied().unwrap_or(NO_ID),
            proxy_gid: self.proxy_gids.first().copied().unwrap_or(NO_ID),
            transparent_mark: match self.mode {
                Mode::Tproxy => self.tproxy_mark,
                Mode::Redirect | Mode::None => 0,
            },
        };
        let lists = Lists {
            ports: ports.plain,
            ranged_ports: ports.ranged,
            ranges,
            owners,
            numbers,
            dns: self.dns_block(),
        };
        CompiledPolicy::new(row, lists)
    }

    /// Adds what only meshes other than Istio exclude; answers the lists of numbers.
    fn exclusion_lists(
        &self,
        ranges: &mut BTreeMap<List, Vec<IpNet>>,
    ) -> BTreeMap<List, Vec<(IpNet, u32)>> {
        let exclusions = &self.exclusions;
        let senders = match self.dialect {
            Dialect::Linkerd => List::SourceExcludedLate,
            _ => List::SourceExcluded,
        };
        put(ranges, List::DestinationExcluded, &exclusions.destinations);
        put(ranges, senders, &exclusions.sources);
        let [users, tcp, udp] = self.owner_bits();
        let mut numbers = BTreeMap::new();
        for (list, valued, fold) in [
            (List::OwnerExcluded, users, Fold::Bits),
            (List::OwnerTcpPort, tcp, Fold::Bits),
            (List::OwnerUdpPort, udp, Fold::Bits),
            (
                List::InPortRangeExcluded,
                self.excluded_inbound_positions(),
                Fold::First,
            ),
            (
                List::OutPortRangeExcluded,
                self.excluded_outbound_positions(),
                Fold::First,
            ),
        ] {
            put(&mut numbers, list, &fold.ranges(&valued));
        }
        numbers
    }

    /// The exemption of the inbound tunnel port is a nat rule, which Istio's mode TPROXY does not reach.
    pub(super) fn dialect_bits(&self) -> u8 {
        let mut bits = self.dialect.bits();
        if self.mode == Mode::Tproxy && self.dialect != Dialect::Ambient {
            bits &= !DIALECT_TUNNEL_IN;
        }
        if self.dns_passes_local() {
            bits |= DIALECT_DNS_PASSES_LOCAL;
        }
        bits
    }

    /// The route of the app's answers to the sidecar, which in mode TPROXY calls it from the client's address.
    #[must_use]
    pub fn return_route(&self) -> Option<ReturnRoute> {
        // Connections to the tunnel port are ztunnel's, whatever is captured.
        let calls_app = self.inbound != InboundPorts::None || self.dialect == Dialect::Ambient;
        let is_needed = self.mode == Mode::Tproxy && calls_app;
        is_needed.then_some(ReturnRoute {
            mark: self.tproxy_mark,
            table: self.tproxy_table,
        })
    }

    /// Ports of the sidecar's listeners.
    #[must_use]
    pub fn listener_ports(&self) -> Vec<u16> {
        let mut ports = vec![self.inbound_port, self.outbound_port];
        ports.dedup();
        ports
    }

    /// The rule for an ingress interface; virtual interfaces come first. Of several entries that match, the first
    /// one counts.
    #[must_use]
    pub fn iface(&self, name: &str) -> IfaceRow {
        [
            (&self.virtual_interfaces, IfaceRule::Virtual),
            (&self.excluded_interfaces, IfaceRule::Excluded),
        ]
        .into_iter()
        .find_map(|(names, rule)| {
            let position = interfaces::position(names, name)?;
            Some(IfaceRow::new(rule, position as u32))
        })
        .unwrap_or(IfaceRow::PLAIN)
    }

    /// The same policy in the node's numbering of users and groups.
    ///
    /// # Errors
    /// If the pod's user namespace does not have one of the ids; no socket can have it then, and
    /// netfilter refuses such a rule as well (`owner_check` in net/netfilter/xt_owner.c).
    pub fn on_node(&self, ids: &IdMaps) -> Result<Self, UnknownId> {
        let mut policy = self.clone();
        for uid in &mut policy.proxy_uids {
            *uid = ids.uid(*uid)?;
        }
        for entry in &mut policy.exclusions.owners {
            // As netfilter does: it maps both ends.
            entry.users.first = ids.uid(entry.users.first)?;
            entry.users.last = ids.uid(entry.users.last)?;
        }
        let groups = policy.included_groups.iter_mut().flatten();
        for gid in policy
            .proxy_gids
            .iter_mut()
            .chain(groups)
            .chain(&mut policy.excluded_groups)
        {
            *gid = ids.gid(*gid)?;
        }
        Ok(policy)
    }

    /// Whether an application's connection may be sent to an address of
    /// [`DEDICATED`](sidetrack_common::target::DEDICATED). In a pod that still has its iptables rules, these leave connections
    /// over lo to such addresses alone, but for Consul's: they send them to the same sidecar, which finds what was dialed.
    #[must_use]
    pub fn rules_ignore_capture_range(&self) -> bool {
        let is = |bit| self.dialect.bits() & bit != 0;
        // Istio's rules return what goes over lo by the owner that it does not have.
        let return_lo = is(DIALECT_LO_UNTOUCHED)
            || !self.proxy_uids.is_empty()
            || !self.proxy_gids.is_empty()
            || self.dialect.proxy_mark().is_some();
        return_lo && !is(DIALECT_LOCAL_CAPTURED) && !self.includes_loopback()
    }

    /// Whether a mesh's own rules would be there for IPv6 in a pod with these addresses.
    ///
    /// Istio has them if the first address that is neither loopback nor link-local is an IPv6 one, and with dual stack if
    /// any is. Kuma has them if any IPv6 address is not loopback (`HasLocalIPv6` of its transparent proxy), so that one
    /// which is link-local is enough. The other meshes' programs do not ask for addresses.
    #[must_use]
    pub fn captures_v6(&self, addresses: impl Iterator<Item = IpAddr>) -> bool {
        let is_self = |addr: &IpAddr| Addr::from(*addr).is(Addr::SELF_V6);
        let mut own = addresses.filter(|addr| !addr.is_loopback() && !is_self(addr));
        let is_global = |addr: &IpAddr| match addr {
            IpAddr::V4(v4) => !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        let found = match self.dialect.mesh() {
            MeshName::Istio if self.dual_stack => {
                own.any(|addr| addr.is_ipv6() && is_global(&addr))
            }
            MeshName::Istio => own.find(is_global).is_some_and(|addr| addr.is_ipv6()),
            MeshName::Kuma => own.any(|addr| addr.is_ipv6()),
            MeshName::Linkerd | MeshName::Consul | MeshName::Ambient => self.dual_stack,
        };
        found && !self.ipv4_only
    }

    /// Whether `-i` lists a loopback range, of whichever family.
    #[must_use]
    pub fn includes_loopback(&self) -> bool {
        match &self.outbound {
            OutboundRanges::All => false,
            OutboundRanges::Only(ranges) => ranges.iter().any(|range| range.addr().is_loopback()),
        }
    }
}

/// The lists of ports.
#[derive(Default)]
struct Ports {
    plain: BTreeMap<List, Vec<u16>>,
    ranged: BTreeMap<List, Vec<(u16, u32)>>,
}

impl Ports {
    /// Adds a list. One with ranges has a row for each of their ports.
    fn put(&mut self, list: List, entries: &[Span]) {
        if is_ranged(entries) {
            let ports = numbered_ports(entries);
            let mut seen = BTreeSet::new();
            let first = ports.filter(|(port, _)| seen.insert(*port));
            self.ranged.insert(list, first.collect());
        } else {
            let ports: Vec<u16> = numbered_ports(entries).map(|(port, _)| port).collect();
            put(&mut self.plain, list, &ports);
        }
    }

    /// Adds what rules for UDP need of a list of excluded ports with ranges, which is one of numbers: queries.
    fn put_dns(&mut self, entries: &[Span]) {
        let mut entries = entries.iter().zip(0..);
        let first = entries.find(|(entry, _)| entry.contains(DNS_PORT.into()));
        if let Some((_, position)) = first {
            self.ranged
                .insert(List::OutPortExcluded, vec![(DNS_PORT, position)]);
        }
    }
}

/// The ports of all entries, each with the position of its entry.
fn numbered_ports(entries: &[Span]) -> impl Iterator<Item = (u16, u32)> {
    let entries = entries.iter().zip(0..);
    entries.flat_map(|(entry, position)| {
        let ports = (entry.first..=entry.last).filter_map(|port| port.try_into().ok());
        ports.map(move |port| (port, position))
    })
}

/// Adds a list, unless it is empty: an absent list costs the kernel no lookup.
fn put<T: Clone>(lists: &mut BTreeMap<List, Vec<T>>, list: List, entries: &[T]) {
    if !entries.is_empty() {
        lists.insert(list, entries.to_vec());
    }
}

#[cfg(test)]
mod tests;
