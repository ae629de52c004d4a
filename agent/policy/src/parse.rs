//! Raw inputs to validated values.

pub(crate) mod reader;
pub(crate) mod values;

use std::collections::BTreeSet;

use self::{
    reader::{Reader, Settings},
    values::{
        before_sidecar, boolean, interface, loopback, mode, owner, plain_port, plain_port_or_zero,
        tproxy_mark, tproxy_table,
    },
};
use crate::{
    dialect::Dialect,
    error::PolicyError,
    exclusions::Span,
    inputs::{Input, Inputs},
    policy::{DnsCapture, InboundPorts, Mode, OutboundRanges, Policy},
};

const DEFAULT_STATUS_PORT: u16 = 15020;
/// How many ports the ranges of a list may have whose every port takes a row: the quota of a policy.
const MAX_PORTS_IN_RANGES: usize = 16_384;

impl Policy {
    /// The policy of raw inputs, with the defaults of istio-iptables for the rest.
    ///
    /// # Errors
    /// Every value that cannot be used.
    pub fn of_inputs(inputs: &Inputs) -> Result<Self, Vec<PolicyError>> {
        policy(inputs)
    }
}

/// Builds the policy; collects every bad value rather than the first.
#[expect(
    clippy::too_many_lines,
    reason = "a line for each field, in the order of the flags"
)]
fn policy(inputs: &Inputs) -> Result<Policy, Vec<PolicyError>> {
    let mut read = Reader {
        inputs,
        settings: Settings::default(),
    };
    let default = Policy::default();
    // istio-iptables takes an empty list for none.
    let owners = |owners: Option<Vec<u32>>| owners.filter(|owners| !owners.is_empty());
    let proxy_uids = owners(read.list(Input::ProxyUid, owner)).unwrap_or(default.proxy_uids);
    let mode = read
        .one(Input::InterceptionMode, mode)
        .unwrap_or(default.mode);
    // The rules of mangle look ports up one by one.
    let most_excluded = (mode == Mode::Tproxy).then_some(MAX_PORTS_IN_RANGES);
    let dialect = read.one(Input::Dialect, str::parse).unwrap_or_default();
    let outbound_port = read
        .one(Input::EnvoyPort, plain_port)
        .unwrap_or(default.outbound_port);
    let inbound = inbound(&mut read, dialect, most_excluded);
    let included_groups = match read.inputs.get(Input::OwnerGroups) {
        Some(groups) if groups.value.trim() == "*" => None,
        _ => read.list(Input::OwnerGroups, owner),
    };
    // istio-iptables looks at the other list only if this one is "*" (`ParseInterceptFilter`).
    let excluded_groups = match &included_groups {
        None => read.list(Input::OwnerGroupsExclude, owner),
        Some(_) => None,
    };
    let captures_all = matches!(inbound, InboundPorts::AllExcept(_));
    let policy = Policy {
        dialect,
        outbound_port,
        inbound_port: dialect.inbound_port(
            outbound_port,
            captures_all,
            read.one(Input::InboundCapturePort, plain_port),
        ),
        tunnel_port: read
            .one(Input::InboundTunnelPort, plain_port)
            .unwrap_or(default.tunnel_port),
        proxy_gids: owners(read.list(Input::ProxyGid, owner)).unwrap_or_else(|| proxy_uids.clone()),
        proxy_uids,
        mode,
        tproxy_mark: read
            .one(Input::TproxyMark, tproxy_mark)
            .unwrap_or(default.tproxy_mark),
        tproxy_table: read
            .one(Input::TproxyTable, tproxy_table)
            .unwrap_or(default.tproxy_table),
        inbound,
        outbound: outbound(&mut read),
        excluded_ranges: read.ranges(Input::ServiceExcludeCidr).unwrap_or_default(),
        included_outbound_ports: read
            .ports(Input::OutboundPorts, Some(MAX_PORTS_IN_RANGES))
            .unwrap_or_default(),
        excluded_outbound_ports: read
            .ports(Input::OutboundPortsExclude, most_excluded)
            .unwrap_or_default(),
        excluded_interfaces: read
            .list(Input::ExcludeInterfaces, interface)
            .unwrap_or_default(),
        virtual_interfaces: read
            .list(Input::VirtualInterfaces, interface)
            .unwrap_or_default(),
        loopback_v4: read
            .one(Input::LoopbackCidr, loopback)
            .unwrap_or(default.loopback_v4),
        included_groups,
        excluded_groups: excluded_groups.unwrap_or_default(),
        dual_stack: read
            .one(Input::DualStack, boolean)
            .unwrap_or(default.dual_stack),
        ipv4_only: false,
        dns: dns(&mut read),
        dns_port: default.dns_port,
        exclusions: default.exclusions,
        before_sidecar: read
            .one(Input::BeforeSidecar, before_sidecar)
            .unwrap_or(default.before_sidecar),
        accelerate: read
            .one(Input::Accelerate, boolean)
            .unwrap_or(default.accelerate),
        unknown_annotations: Vec::new(),
        remarks: Vec::new(),
    };
    if read.settings.errors.is_empty() {
        Ok(Policy {
            remarks: read.settings.remarks,
            ..policy
        })
    } else {
        Err(read.settings.errors)
    }
}

fn inbound(read: &mut Reader<'_>, dialect: Dialect, most_excluded: Option<usize>) -> InboundPorts {
    let ports = read.inputs.get(Input::InboundPorts);
    if let Some(ports) = ports
        && ports.value.trim() != "*"
    {
        return match read.ports(Input::InboundPorts, Some(MAX_PORTS_IN_RANGES)) {
            Some(only) if !only.is_empty() => InboundPorts::Only(only),
            _ => InboundPorts::None,
        };
    }
    if let Some(except) = read.ports(Input::LocalExcludePorts, most_excluded) {
        return InboundPorts::AllExcept(except);
    }
    // Only where the injector's arguments have no list, which has these.
    let user = read.list(Input::ExcludeInboundPorts, plain_port);
    let status = read.one(Input::StatusPort, plain_port_or_zero);
    let status = status.unwrap_or(DEFAULT_STATUS_PORT);
    let mut seen = BTreeSet::new();
    let ports = dialect.sidecar_ports().iter().copied();
    let ports = ports
        .chain(user.unwrap_or_default())
        .chain((status != 0).then_some(status))
        .filter(|port| seen.insert(*port));
    InboundPorts::AllExcept(ports.map(Span::from).collect())
}

fn outbound(read: &mut Reader<'_>) -> OutboundRanges {
    match read.inputs.get(Input::ServiceCidr) {
        Some(ranges) if ranges.value.trim() != "*" => {
            OutboundRanges::Only(read.ranges(Input::ServiceCidr).unwrap_or_default())
        }
        _ => OutboundRanges::All,
    }
}

fn dns(read: &mut Reader<'_>) -> DnsCapture {
    let is_on = read.one(Input::DnsCapture, boolean).unwrap_or(false);
    // Without the other it has no effect.
    let is_all = read.one(Input::CaptureAllDns, boolean).unwrap_or(false);
    match (is_on, is_all) {
        (false, _) => DnsCapture::Off,
        (true, true) => DnsCapture::All,
        (true, false) => DnsCapture::Servers(None),
    }
}

#[cfg(test)]
mod tests;
