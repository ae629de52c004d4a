//! A pod's policy: raw inputs become a validated [`Policy`], which becomes the rows the kernel reads.

use std::{collections::BTreeMap, net::Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use sidetrack_common::{
    pod::{IfaceRow, IfaceRule},
    policy::{InboundMode, List, NO_ID, Policy as Row},
};

use crate::{
    compiled::CompiledPolicy,
    dialect::Dialect,
    ids::{IdMaps, UnknownId},
    inputs::{self, Input, Inputs},
    parse,
};

/// Annotation that lets a pod's init containers reach the network: `passthrough`, or `refuse`, which is
/// what holds without it.
pub const BEFORE_SIDECAR: &str = "sidetrack.dev/before-sidecar";

/// A value that cannot be used. The text names where it came from and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin} is {value:?}: {problem}")]
pub struct PolicyError {
    /// The annotation, argument or variable.
    pub origin: String,
    /// What it says.
    pub value: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// `-m`: how the sidecar receives connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Mode {
    /// Connections arrive at the sidecar with SO_ORIGINAL_DST.
    Redirect,
    /// Connections arrive transparently; not handled yet.
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
    AllExcept(Vec<u16>),
    /// `-b 80,443`.
    Only(Vec<u16>),
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

/// A pod's validated policy, in the order of the flags of istio-iptables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Whose rule list it is.
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
    /// `-b`, `-d`.
    pub inbound: InboundPorts,
    /// `-i`.
    pub outbound: OutboundRanges,
    /// `-x`.
    pub excluded_ranges: Vec<IpNet>,
    /// `-q`.
    pub included_outbound_ports: Vec<u16>,
    /// `-o`.
    pub excluded_outbound_ports: Vec<u16>,
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
    /// `ISTIO_META_DNS_CAPTURE`: asked for, and not done.
    pub dns_capture: bool,
    /// Annotation [`BEFORE_SIDECAR`]: outbound connections go past the sidecar until it first listens.
    pub before_sidecar: bool,
}

impl Policy {
    /// What a pod's manifest says, with the mesh's defaults and then istio-iptables' for the rest.
    ///
    /// # Errors
    /// Every value that cannot be used.
    pub fn of_pod(pod: &Pod, defaults: &Inputs) -> Result<Self, Vec<PolicyError>> {
        let mut inputs = Inputs::default();
        let mut errors = Vec::new();
        match inputs::init_container(pod) {
            Ok(Some(arguments)) => inputs.add(arguments),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
        inputs.add(inputs::annotations(pod));
        inputs.add(inputs::sidecar_environment(pod));
        if let Some(dialect) = Dialect::of_pod(pod) {
            let origin = "the tag of the pod's image".to_owned();
            inputs.set(Input::Dialect, &dialect.to_string(), origin);
        }
        inputs.add(defaults.clone());
        match Self::of_inputs(&inputs) {
            Ok(policy) if errors.is_empty() => Ok(policy),
            Ok(_) => Err(errors),
            Err(more) => {
                errors.extend(more);
                Err(errors)
            }
        }
    }

    /// What inputs say, with istio-iptables' defaults for the rest.
    ///
    /// # Errors
    /// Every value that cannot be used.
    pub fn of_inputs(inputs: &Inputs) -> Result<Self, Vec<PolicyError>> {
        parse::policy(inputs)
    }

    /// The rows for the kernel.
    #[must_use]
    pub fn compile(&self) -> CompiledPolicy {
        let (mut ports, mut ranges, mut owners) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let inbound = match &self.inbound {
            InboundPorts::None => InboundMode::Off,
            InboundPorts::AllExcept(except) => {
                put(&mut ports, List::InPort, except);
                InboundMode::AllExcept
            }
            InboundPorts::Only(only) => {
                put(&mut ports, List::InPort, only);
                InboundMode::Listed
            }
        };
        put(
            &mut ports,
            List::OutPortExcluded,
            &self.excluded_outbound_ports,
        );
        put(
            &mut ports,
            List::OutPortIncluded,
            &self.included_outbound_ports,
        );
        put(&mut ranges, List::RangeExcluded, &self.excluded_ranges);
        let outbound_all = match &self.outbound {
            OutboundRanges::All => true,
            OutboundRanges::Only(only) => {
                put(&mut ranges, List::RangeIncluded, only);
                false
            }
        };
        // The first owner has a place of its own; here it only keeps the others' positions.
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
        let row = Row {
            outbound_port: self.outbound_port,
            inbound_port: self.inbound_port,
            tunnel_port: self.tunnel_port,
            inbound: inbound as u8,
            outbound_all: u8::from(outbound_all),
            loopback_included: u8::from(self.includes_loopback()),
            loopback_v4_prefix: self.loopback_v4.prefix_len(),
            dialect: self.dialect.bits(),
            virtual_interfaces: u8::from(!self.virtual_interfaces.is_empty()),
            loopback_v4: self.loopback_v4.network().octets(),
            lists: 0,
            proxy_uid: self.proxy_uids.first().copied().unwrap_or(NO_ID),
            proxy_gid: self.proxy_gids.first().copied().unwrap_or(NO_ID),
        };
        CompiledPolicy::new(row, ports, ranges, owners)
    }

    /// Ports whose listeners arrivals may be handed to.
    pub fn listener_ports(&self) -> impl Iterator<Item = u16> + use<> {
        let virtual_too = !self.virtual_interfaces.is_empty();
        [self.inbound_port]
            .into_iter()
            .chain(virtual_too.then_some(self.outbound_port))
    }

    /// What the policy says of an ingress interface; virtual interfaces come first.
    #[must_use]
    pub fn iface(&self, name: &str) -> IfaceRow {
        [
            (&self.virtual_interfaces, IfaceRule::Virtual),
            (&self.excluded_interfaces, IfaceRule::Excluded),
        ]
        .into_iter()
        .find_map(|(names, rule)| {
            let position = names.iter().position(|known| known == name)?;
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

    /// What people should know of a pod with this policy although nothing is wrong.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.lost();
        if self.before_sidecar {
            notes.push(
                "until its sidecar first listens, its outbound connections go past it".to_owned(),
            );
        }
        notes
    }

    /// What sidetrack does not do of what the policy asks for.
    #[must_use]
    pub fn lost(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.virtual_interfaces.is_empty() {
            notes.push(format!(
                "what passes through the pod from {} to elsewhere is left alone; what is delivered in the pod follows the rules",
                self.virtual_interfaces.join(",")
            ));
        }
        if self.dns_capture {
            notes.push(
                "DNS capture is asked for and not done: queries go to the server they are sent to"
                    .to_owned(),
            );
        }
        notes
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
            dns_capture: false,
            before_sidecar: false,
        }
    }
}

/// Adds a list, unless it is empty: an absent list costs the kernel no lookup.
fn put<T: Clone>(lists: &mut BTreeMap<u16, Vec<T>>, list: List, entries: &[T]) {
    if !entries.is_empty() {
        lists.insert(list as u16, entries.to_vec());
    }
}

#[cfg(test)]
mod tests;
