//! DNS capture: which queries go to the sidecar.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use sidetrack_common::dns::{DnsBlock, DnsPosition, DnsTcp};

use super::{DnsCapture, Policy};
use crate::dialect::Dialect;

impl Policy {
    /// Whether which queries are captured depends on the pod's resolv.conf.
    #[must_use]
    pub fn follows_resolv_conf(&self) -> bool {
        matches!(self.dns, DnsCapture::Servers(_)) && self.has_dns_servers()
    }

    /// The same, and it has not been read: until then queries to any server are captured.
    #[must_use]
    pub fn awaits_resolv_conf(&self) -> bool {
        matches!(self.dns, DnsCapture::Servers(None)) && self.follows_resolv_conf()
    }

    /// The same policy, with the servers of the pod's resolv.conf.
    #[must_use]
    pub fn with_dns_servers(&self, servers: Option<&[IpAddr]>) -> Self {
        let mut policy = self.clone();
        if let DnsCapture::Servers(own) = &mut policy.dns {
            *own = servers.map(<[IpAddr]>::to_vec);
        }
        policy
    }

    /// The rules for DNS, if the policy has any.
    #[must_use]
    pub fn dns_block(&self) -> Option<DnsBlock> {
        if self.dns_ranges().is_empty() {
            return None;
        }
        let (position, tcp) = match self.dialect {
            Dialect::V1_8 => (DnsPosition::AfterOwners, DnsTcp::InsteadOfOutbound),
            Dialect::Kuma => (DnsPosition::AfterOwners, DnsTcp::Ordinary),
            Dialect::Consul | Dialect::Ambient => (DnsPosition::First, DnsTcp::Captured),
            _ => (DnsPosition::AfterOwners, DnsTcp::Captured),
        };
        let block = DnsBlock::new(self.dns_port, position, tcp).with_udp();
        Some(match self.dialect {
            Dialect::Current => block.with_udp_exclusions(),
            _ => block,
        })
    }

    /// Whether port 53 is exempt from the rules about connections that stay in the pod.
    pub(crate) fn dns_passes_local(&self) -> bool {
        let passes = matches!(self.dialect, Dialect::V1_13 | Dialect::Current);
        passes && self.dns_block().is_some()
    }

    /// The servers whose queries are captured, as ranges. Empty if none are.
    #[must_use]
    pub fn dns_ranges(&self) -> Vec<IpNet> {
        const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];
        let all = || ALL.iter().filter_map(|range| range.parse().ok());
        match (&self.dns, self.dialect) {
            (DnsCapture::Off, _) | (_, Dialect::V1_1 | Dialect::V1_5 | Dialect::Linkerd) => {
                Vec::new()
            }
            // The resolver that resolv.conf of such a pod names. With rules for IPv6 those of IPv4 have none for DNS.
            (_, Dialect::Consul) => {
                let loopback: IpAddr = match self.ipv4_only {
                    true => Ipv4Addr::LOCALHOST.into(),
                    false => Ipv6Addr::LOCALHOST.into(),
                };
                vec![IpNet::from(loopback)]
            }
            // It has neither servers nor IPv6.
            (_, Dialect::V1_8) => all().take(1).collect(),
            (DnsCapture::All | DnsCapture::Servers(None), _) => all().collect(),
            (DnsCapture::Servers(Some(servers)), _) => {
                servers.iter().copied().map(IpNet::from).collect()
            }
        }
    }

    /// Whether its dialect distinguishes servers.
    pub(crate) fn has_dns_servers(&self) -> bool {
        let dialects = [Dialect::V1_13, Dialect::Current, Dialect::Kuma];
        dialects.contains(&self.dialect)
    }

    /// What people should know about DNS capture; what is not done although it is requested is said by
    /// [`Policy::lost`].
    pub(crate) fn dns_note(&self) -> Option<String> {
        let whose = match &self.dns {
            _ if self.dns_ranges().is_empty() => return None,
            DnsCapture::Servers(Some(servers)) if self.has_dns_servers() => {
                let servers: Vec<String> = servers.iter().map(IpAddr::to_string).collect();
                format!("to {} (its resolv.conf)", servers.join(", "))
            }
            DnsCapture::Servers(None) if self.has_dns_servers() => {
                "to any server, until its resolv.conf has been read,".to_owned()
            }
            _ if self.dialect == Dialect::Consul => "to its own loopback address".to_owned(),
            _ => "to any server".to_owned(),
        };
        Some(format!(
            "its DNS queries {whose} go to port {}",
            self.dns_port
        ))
    }

    /// Why no query is captured although that is requested.
    pub(super) fn lost_dns(&self) -> Option<String> {
        if self.dns == DnsCapture::Off || !self.dns_ranges().is_empty() {
            return None;
        }
        Some(match self.dialect {
            Dialect::V1_1 | Dialect::V1_5 | Dialect::Linkerd => format!(
                "DNS capture is requested, and the rules of dialect {} have none: queries go to the server they are sent to",
                self.dialect
            ),
            _ => "DNS capture is requested, and no server is known from the pod's resolv.conf: queries go to the server they are sent to".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
