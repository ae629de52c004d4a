//! A pod's validated policy, which becomes the rows the kernel reads.

mod changes;
mod compile;
mod dns;
mod excluded;
mod notes;

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::{
    dialect::Dialect,
    exclusions::{self, Exclusions, Span},
};

/// The mark of the proxy's connections to its own pod in mode TPROXY; istio-iptables has no flag for it.
pub const OUTBOUND_MARK: u32 = 1338;

/// `-m`: how the sidecar receives connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Mode {
    /// The sidecar reads the destination from SO_ORIGINAL_DST.
    Redirect,
    /// Inbound the sidecar reads it from its socket's own address, and it calls the app from the client's.
    Tproxy,
    /// The pod is not intercepted.
    None,
}

/// `-b` and `-d`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "capture", content = "ports")]
pub enum InboundPorts {
    /// `-b ""`.
    None,
    /// `-b *` with `-d`.
    AllExcept(#[serde(serialize_with = "exclusions::as_numbers")] Vec<Span>),
    /// `-b 80,443`.
    Only(#[serde(serialize_with = "exclusions::as_numbers")] Vec<Span>),
}

/// `-i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "capture", content = "ranges")]
pub enum OutboundRanges {
    /// `-i *`.
    All,
    /// `-i 10.0.0.0/8`; empty captures nothing.
    Only(Vec<IpNet>),
}

/// Where Istio's sidecar answers queries; istio-iptables has no flag for it. Kuma's answers there as well.
pub const DNS_CAPTURE_PORT: u16 = 15053;

/// `--redirect-dns` and `--capture-all-dns`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "capture", content = "servers")]
pub enum DnsCapture {
    /// No query is captured.
    #[default]
    Off,
    /// Queries to the servers of the pod's resolv.conf. `None` until it was read: then all are captured.
    Servers(Option<Vec<IpAddr>>),
    /// Queries to any server.
    All,
}

/// A pod's validated policy, in the order of the flags of istio-iptables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Which mesh's and version's rule list it is.
    pub dialect: Dialect,
    /// `-p`.
    pub outbound_port: u16,
    /// `-z`.
    pub inbound_port: u16,
    /// `-e`.
    pub tunnel_port: u16,
    /// `-u`, in the pod's numbering.
    pub proxy_uids: Vec<u32>,
    /// `-g`, in the pod's numbering.
    pub proxy_gids: Vec<u32>,
    /// `-m`.
    pub mode: Mode,
    /// `-t`: mark of the sidecar's connections to the app, in mode TPROXY.
    #[serde(default = "default_tproxy_mark")]
    pub tproxy_mark: u32,
    /// `-r`: routing table of packets with that mark, in mode TPROXY.
    #[serde(default = "default_tproxy_table")]
    pub tproxy_table: u32,
    /// `-b`, `-d`.
    pub inbound: InboundPorts,
    /// `-i`.
    pub outbound: OutboundRanges,
    /// `-x`.
    pub excluded_ranges: Vec<IpNet>,
    /// `-q`.
    #[serde(serialize_with = "exclusions::as_numbers")]
    pub included_outbound_ports: Vec<Span>,
    /// `-o`.
    #[serde(serialize_with = "exclusions::as_numbers")]
    pub excluded_outbound_ports: Vec<Span>,
    /// `-c`.
    pub excluded_interfaces: Vec<String>,
    /// `-k`.
    pub virtual_interfaces: Vec<String>,
    /// `ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR`.
    pub loopback_v4: Ipv4Net,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS`; `None` is `*`.
    pub included_groups: Option<Vec<u32>>,
    /// `ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE`.
    pub excluded_groups: Vec<u32>,
    /// `ISTIO_DUAL_STACK`.
    pub dual_stack: bool,
    /// Whether there are no rules for IPv6, whatever the pod's addresses.
    #[serde(default)]
    pub ipv4_only: bool,
    /// `ISTIO_META_DNS_CAPTURE`.
    #[serde(default)]
    pub dns: DnsCapture,
    /// Where the sidecar answers queries.
    #[serde(default = "default_dns_port")]
    pub dns_port: u16,
    /// What only other meshes than Istio can leave alone.
    #[serde(default, skip_serializing_if = "Exclusions::is_empty")]
    pub exclusions: Exclusions,
    /// Annotation [`BEFORE_SIDECAR`](crate::names::BEFORE_SIDECAR): outbound connections bypass the sidecar until it first listens.
    pub before_sidecar: bool,
    /// Annotation [`ACCELERATE`](crate::names::ACCELERATE): application and sidecar exchange bytes past TCP.
    pub accelerate: bool,
    /// Annotations that look like Istio's or sidetrack's and mean nothing, with the names that were perhaps meant.
    #[serde(default)]
    pub unknown_annotations: Vec<String>,
    /// What was assumed or ignored when the pod was read, as sentences for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

const fn default_tproxy_mark() -> u32 {
    1337
}

const fn default_tproxy_table() -> u32 {
    133
}

const fn default_dns_port() -> u16 {
    DNS_CAPTURE_PORT
}

/// How packets with a mark reach the pod itself, whatever their destination: a rule leads them to a table whose only
/// route is `local default dev lo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnRoute {
    /// The mark.
    pub mark: u32,
    /// The table.
    pub table: u32,
}

impl Policy {
    /// Whether connections are treated as by another policy.
    #[must_use]
    pub fn has_rules_of(&self, other: &Self) -> bool {
        *self
            == Self {
                unknown_annotations: self.unknown_annotations.clone(),
                remarks: self.remarks.clone(),
                ..other.clone()
            }
    }

    /// How many entries its lists have in all.
    #[must_use]
    pub fn entries(&self) -> usize {
        let inbound = match &self.inbound {
            InboundPorts::None => 0,
            InboundPorts::AllExcept(ports) | InboundPorts::Only(ports) => ports.len(),
        };
        let outbound = match &self.outbound {
            OutboundRanges::All => 0,
            OutboundRanges::Only(ranges) => ranges.len(),
        };
        [
            inbound,
            outbound,
            self.excluded_ranges.len(),
            self.included_outbound_ports.len(),
            self.excluded_outbound_ports.len(),
            self.proxy_uids.len(),
            self.proxy_gids.len(),
            self.included_groups.as_ref().map_or(0, Vec::len),
            self.excluded_groups.len(),
            self.excluded_interfaces.len(),
            self.virtual_interfaces.len(),
            self.dns_ranges().len(),
            self.exclusions.entries(),
        ]
        .iter()
        .sum()
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            dialect: Dialect::Current,
            outbound_port: 15001,
            inbound_port: 15006,
            tunnel_port: 15008,
            proxy_uids: vec![1337],
            proxy_gids: vec![1337],
            mode: Mode::Redirect,
            tproxy_mark: default_tproxy_mark(),
            tproxy_table: default_tproxy_table(),
            inbound: InboundPorts::AllExcept(Vec::new()),
            outbound: OutboundRanges::All,
            excluded_ranges: Vec::new(),
            included_outbound_ports: Vec::new(),
            excluded_outbound_ports: Vec::new(),
            excluded_interfaces: Vec::new(),
            virtual_interfaces: Vec::new(),
            loopback_v4: Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 32),
            included_groups: None,
            excluded_groups: Vec::new(),
            dual_stack: false,
            ipv4_only: false,
            dns: DnsCapture::Off,
            dns_port: default_dns_port(),
            exclusions: Exclusions::default(),
            before_sidecar: false,
            accelerate: false,
            unknown_annotations: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
