//! DNS capture: which queries go to the sidecar.

use std::net::IpAddr;

use ipnet::IpNet;
use sidetrack_common::dns::{DnsBlock, DnsPosition, DnsTcp};

use super::{DNS_CAPTURE_PORT, DnsCapture, Policy};
use crate::dialect::Dialect;

impl Policy {
    /// Whether which queries are captured depends on the pod's resolv.conf.
    #[must_use]
    pub fn follows_resolv_conf(&self) -> bool {
        matches!(self.dns, DnsCapture::Servers(_)) && self.has_dns_servers()
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
        let tcp = match self.dialect {
            Dialect::V1_8 => DnsTcp::InsteadOfOutbound,
            _ => DnsTcp::Captured,
        };
        let block = DnsBlock::new(DNS_CAPTURE_PORT, DnsPosition::AfterOwners, tcp).with_udp();
        Some(match self.dialect {
            Dialect::Current => block.with_udp_exclusions(),
            _ => block,
        })
    }

    /// Whether port 53 is left out of the rules about connections that stay in the pod.
    pub(crate) fn dns_passes_local(&self) -> bool {
        self.dns_block().is_some() && self.dialect != Dialect::V1_8
    }

    /// The servers whose queries are captured, as ranges. Empty if none are.
    #[must_use]
    pub fn dns_ranges(&self) -> Vec<IpNet> {
        const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];
        let all = || ALL.iter().filter_map(|range| range.parse().ok());
        match (&self.dns, self.dialect) {
            (DnsCapture::Off, _) | (_, Dialect::V1_1 | Dialect::V1_5) => Vec::new(),
            // It has neither servers nor IPv6.
            (_, Dialect::V1_8) => all().take(1).collect(),
            (DnsCapture::All | DnsCapture::Servers(None), _) => all().collect(),
            (DnsCapture::Servers(Some(servers)), _) => {
                servers.iter().copied().map(IpNet::from).collect()
            }
        }
    }

    /// Whether its dialect tells servers apart.
    pub(crate) fn has_dns_servers(&self) -> bool {
        matches!(self.dialect, Dialect::V1_13 | Dialect::Current)
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
            _ => "to any server".to_owned(),
        };
        Some(format!(
            "its DNS queries {whose} go to the sidecar's port {DNS_CAPTURE_PORT}"
        ))
    }

    /// Why no query is captured although that is requested.
    pub(super) fn lost_dns(&self) -> Option<String> {
        if self.dns == DnsCapture::Off || !self.dns_ranges().is_empty() {
            return None;
        }
        Some(match self.dialect {
            Dialect::V1_1 | Dialect::V1_5 => format!(
                "DNS capture is requested, and the rules of dialect {} have none: queries go to the server they are sent to",
                self.dialect
            ),
            _ => "DNS capture is requested, and no server is known from the pod's resolv.conf: queries go to the server they are sent to".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
