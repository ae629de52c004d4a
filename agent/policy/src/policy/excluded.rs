//! The rules for what meshes other than Istio leave alone.

use ipnet::IpNet;
use sidetrack_common::{
    decide::SSH_PORT,
    policy::{DIALECT_SSH_IN, DIALECT_TUNNEL_IN, DNS_DIRECT_BITS, OUTBOUND_OFF_BIT, OWNER_ENTRIES},
};

use super::{InboundPorts, Mode, Policy};
use crate::{
    dialect::Dialect,
    exclusions::{MULTIPORT_SLOTS, Protocol, Span, Valued, is_ranged},
};

impl Policy {
    /// Bits of the families in which a rule leaves queries over TCP to the servers that they are sent to.
    fn dns_direct_bits(&self) -> u32 {
        let has_rule = self.dialect == Dialect::Kuma && !self.exclusions.captures_dns_over_tcp;
        let servers = self.dns_ranges();
        let [v4, v6] = DNS_DIRECT_BITS;
        let families = servers.iter().filter(|_| has_rule);
        families.fold(0, |bits, server| match server {
            IpNet::V4(_) => bits | 1 << v4,
            IpNet::V6(_) => bits | 1 << v6,
        })
    }

    /// The ports of each rule for excluded ports.
    pub(crate) fn port_rules(&self, ports: &[Span]) -> Vec<Vec<Span>> {
        if self.dialect != Dialect::Linkerd {
            return ports.iter().map(|port| vec![*port]).collect();
        }
        let mut rules: Vec<Vec<Span>> = Vec::new();
        let mut free = 0;
        for port in ports {
            if port.slots() > free {
                rules.push(Vec::new());
                free = MULTIPORT_SLOTS;
            }
            free -= port.slots();
            if let Some(rule) = rules.last_mut() {
                rule.push(*port);
            }
        }
        rules
    }

    /// The rules that match by user: bits of their entries for users, TCP ports and UDP ports.
    pub(crate) fn owner_bits(&self) -> [Valued; 3] {
        let (mut users, mut tcp, mut udp) = (Valued::new(), Valued::new(), Valued::new());
        let everyone = Span {
            first: 0,
            last: u32::MAX,
        };
        let entries = self.exclusions.owners.iter().zip(0..OWNER_ENTRIES);
        for (entry, bit) in entries {
            users.push((entry.users, 1 << bit));
            let all = [Span::ALL_PORTS];
            let ports = match &*entry.ports {
                [] => &all[..],
                ports => ports,
            };
            let of_entry = ports.iter().map(|port| (*port, 1 << bit));
            if entry.protocol != Some(Protocol::Udp) {
                tcp.extend(of_entry.clone());
            }
            if entry.protocol != Some(Protocol::Tcp) {
                udp.extend(of_entry);
            }
        }
        let dns_direct = self.dns_direct_bits();
        if dns_direct != 0 {
            let proxy = self.proxy_uids.first().copied();
            let others = match proxy {
                Some(proxy) => everyone.without(proxy),
                None => [Some(everyone), None],
            };
            let others = others.into_iter().flatten();
            users.extend(others.map(|span| (span, dns_direct)));
            tcp.push((Span::one(53), dns_direct));
        }
        if self.exclusions.outbound_off {
            users.push((everyone, 1 << OUTBOUND_OFF_BIT));
            tcp.push((Span::ALL_PORTS, 1 << OUTBOUND_OFF_BIT));
        }
        [users, tcp, udp]
    }

    /// The positions of the rules for excluded inbound ports, as far as these are not plain ports.
    pub(crate) fn excluded_inbound_positions(&self) -> Valued {
        match &self.inbound {
            InboundPorts::AllExcept(ports) if self.excludes_by_range(ports) => {
                // Ports that rules before these leave alone.
                let bits = self.dialect_bits();
                let ahead = [
                    (self.tunnel_port, DIALECT_TUNNEL_IN),
                    (SSH_PORT, DIALECT_SSH_IN),
                ];
                let ahead = ahead.into_iter().filter(|(_, bit)| bits & bit != 0);
                ahead.fold(self.port_positions(ports), |valued, (port, _)| {
                    let parts = |(span, position): (Span, u32)| {
                        let parts = span.without(port.into()).into_iter();
                        parts.flatten().map(move |part| (part, position))
                    };
                    valued.into_iter().flat_map(parts).collect()
                })
            }
            _ => self.port_positions(&self.exclusions.inbound_ports),
        }
    }

    /// The same for outbound ports.
    pub(crate) fn excluded_outbound_positions(&self) -> Valued {
        match &self.excluded_outbound_ports {
            ports if self.excludes_by_range(ports) => self.port_positions(ports),
            _ => self.port_positions(&self.exclusions.outbound_ports),
        }
    }

    /// Whether a list of excluded ports is one of ranges in the kernel. Mode TPROXY has a row for each port: the rules of
    /// mangle look up no ranges.
    pub(super) fn excludes_by_range(&self, ports: &[Span]) -> bool {
        self.mode != Mode::Tproxy && is_ranged(ports)
    }

    fn port_positions(&self, ports: &[Span]) -> Valued {
        let rules = self.port_rules(ports).into_iter().zip(0..);
        rules
            .flat_map(|(spans, position)| spans.into_iter().map(move |span| (span, position)))
            .collect()
    }
}

#[cfg(test)]
mod tests;
