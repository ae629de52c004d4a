//! Raw inputs to validated values.

use std::{
    net::{IpAddr, Ipv4Addr},
    str::FromStr,
};

use ipnet::{IpNet, Ipv4Net};

use crate::{
    dialect::Dialect,
    inputs::{Input, Inputs, Sourced},
    policy::{InboundPorts, Mode, OutboundRanges, Policy, PolicyError},
    text::shortened,
};

const DEFAULT_STATUS_PORT: u16 = 15020;

/// Builds the policy; collects every bad value rather than the first.
pub fn policy(inputs: &Inputs) -> Result<Policy, Vec<PolicyError>> {
    let mut read = Reader {
        inputs,
        errors: Vec::new(),
    };
    let default = Policy::default();
    let proxy_uids = read.list(Input::ProxyUid, id).unwrap_or(default.proxy_uids);
    let dialect = read.one(Input::Dialect, str::parse).unwrap_or_default();
    let outbound_port = read
        .one(Input::EnvoyPort, port)
        .unwrap_or(default.outbound_port);
    let inbound = inbound(&mut read, dialect);
    let captures_all = matches!(inbound, InboundPorts::AllExcept(_));
    let policy = Policy {
        dialect,
        outbound_port,
        inbound_port: read
            .one(Input::InboundCapturePort, port)
            .unwrap_or_else(|| dialect.inbound_port(outbound_port, captures_all)),
        tunnel_port: read
            .one(Input::InboundTunnelPort, port)
            .unwrap_or(default.tunnel_port),
        proxy_gids: read
            .list(Input::ProxyGid, id)
            .unwrap_or_else(|| proxy_uids.clone()),
        proxy_uids,
        mode: read
            .one(Input::InterceptionMode, mode)
            .unwrap_or(default.mode),
        inbound,
        outbound: outbound(&mut read),
        excluded_ranges: read
            .list(Input::ServiceExcludeCidr, range)
            .unwrap_or_default(),
        included_outbound_ports: read.list(Input::OutboundPorts, port).unwrap_or_default(),
        excluded_outbound_ports: read
            .list(Input::OutboundPortsExclude, port)
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
        included_groups: match read.inputs.get(Input::OwnerGroups) {
            Some(groups) if groups.value.trim() == "*" => None,
            _ => read.list(Input::OwnerGroups, id),
        },
        excluded_groups: read.list(Input::OwnerGroupsExclude, id).unwrap_or_default(),
        dual_stack: read
            .one(Input::DualStack, boolean)
            .unwrap_or(default.dual_stack),
        dns_capture: read
            .one(Input::DnsCapture, boolean)
            .unwrap_or(default.dns_capture),
        before_sidecar: read
            .one(Input::BeforeSidecar, before_sidecar)
            .unwrap_or(default.before_sidecar),
    };
    if read.errors.is_empty() {
        Ok(policy)
    } else {
        Err(read.errors)
    }
}

fn before_sidecar(text: &str) -> Result<bool, String> {
    match text {
        "passthrough" => Ok(true),
        "refuse" => Ok(false),
        _ => Err("write passthrough or refuse".to_owned()),
    }
}

fn inbound(read: &mut Reader<'_>, dialect: Dialect) -> InboundPorts {
    let except = read.list(Input::LocalExcludePorts, port);
    let user = read.list(Input::ExcludeInboundPorts, port);
    let status = read.one(Input::StatusPort, port_or_zero);
    let ports = read.inputs.get(Input::InboundPorts);
    if let Some(ports) = ports
        && ports.value.trim() != "*"
    {
        return match read.list(Input::InboundPorts, port) {
            Some(only) if !only.is_empty() => InboundPorts::Only(only),
            _ => InboundPorts::None,
        };
    }
    InboundPorts::AllExcept(except.unwrap_or_else(|| {
        let status = status.unwrap_or(DEFAULT_STATUS_PORT);
        dialect
            .sidecar_ports()
            .iter()
            .copied()
            .chain(user.unwrap_or_default())
            .chain((status != 0).then_some(status))
            .collect()
    }))
}

fn outbound(read: &mut Reader<'_>) -> OutboundRanges {
    match read.inputs.get(Input::ServiceCidr) {
        Some(ranges) if ranges.value.trim() != "*" => {
            OutboundRanges::Only(read.list(Input::ServiceCidr, range).unwrap_or_default())
        }
        _ => OutboundRanges::All,
    }
}

/// What lists are made of.
trait Entry {
    /// How many a list may have. The kernel's maps hold the lists of all pods: none may crowd out
    /// the others.
    const MOST: usize = 10_000;
}

/// A port.
impl Entry for u16 {}

/// A user or group.
impl Entry for u32 {
    const MOST: usize = 1000;
}

impl Entry for IpNet {}

/// An interface.
impl Entry for String {}

/// Reads inputs and remembers what was wrong with them.
struct Reader<'a> {
    inputs: &'a Inputs,
    errors: Vec<PolicyError>,
}

impl Reader<'_> {
    fn one<T>(&mut self, input: Input, parse: fn(&str) -> Result<T, String>) -> Option<T> {
        let found = self.inputs.get(input)?;
        match parse(found.value.trim()) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.error(found, problem);
                None
            }
        }
    }

    /// A comma-separated list; empty items are dropped, spaces around items are tolerated.
    fn list<T: Entry>(
        &mut self,
        input: Input,
        parse: fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        const NAMED: usize = 10;
        let found = self.inputs.get(input)?;
        let items = found.value.split(',').map(str::trim);
        let mut values = Vec::new();
        let mut bad = 0;
        for item in items.filter(|item| !item.is_empty()) {
            if values.len() + bad == T::MOST {
                self.error(found, format!("write at most {} entries", T::MOST));
                break;
            }
            match parse(item) {
                Ok(value) => values.push(value),
                Err(problem) => {
                    bad += 1;
                    if bad <= NAMED {
                        self.error(found, problem);
                    }
                }
            }
        }
        if bad > NAMED {
            let more = bad - NAMED;
            self.error(found, format!("{more} more entries cannot be used"));
        }
        Some(values)
    }

    fn error(&mut self, found: &Sourced, problem: String) {
        self.errors.push(PolicyError {
            origin: found.origin.clone(),
            value: shortened(&found.value),
            problem,
        });
    }
}

fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!(
            "{:?} is not a port; write a number from 1 to 65535",
            shortened(text)
        )),
        Ok(port) => Ok(port),
    }
}

fn port_or_zero(text: &str) -> Result<u16, String> {
    if text == "0" { Ok(0) } else { port(text) }
}

fn id(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(u32::MAX) | Err(_) => Err(format!(
            "{:?} is not a numeric user or group id; write a number such as 1337",
            shortened(text)
        )),
        Ok(id) => Ok(id),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "REDIRECT" => Ok(Mode::Redirect),
        "TPROXY" => Ok(Mode::Tproxy),
        "NONE" => Ok(Mode::None),
        _ => Err("write REDIRECT, TPROXY or NONE".to_owned()),
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    // What Go's strconv.ParseBool takes.
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

fn range(text: &str) -> Result<IpNet, String> {
    if text == "*" {
        return Err("\"*\" stands alone or not at all; write CIDRs such as 10.0.0.0/8".to_owned());
    }
    let net = IpNet::from_str(text)
        .or_else(|_| IpAddr::from_str(text).map(IpNet::from))
        .map_err(|_| {
            format!(
                "{:?} is not a CIDR; write one such as 10.0.0.0/8 or 2001:db8::/32",
                shortened(text)
            )
        })?;
    match net {
        // v4-mapped connections are judged by the IPv4 rules, so such a range would match nothing.
        IpNet::V6(v6) if v6.network().to_ipv4_mapped().is_some() => {
            Err(format!("{text:?} is an IPv4 range; write it as a.b.c.d/n"))
        }
        net => Ok(net),
    }
}

fn loopback(text: &str) -> Result<Ipv4Net, String> {
    const LOOPBACK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
    match Ipv4Net::from_str(text) {
        Ok(net) if LOOPBACK.contains(&net) => Ok(net),
        _ => Err("write a range within 127.0.0.0/8, such as 127.0.0.1/32".to_owned()),
    }
}

fn interface(text: &str) -> Result<String, String> {
    // dev_valid_name in net/core/dev.c.
    const MAX: usize = 15;
    let valid = text.len() <= MAX
        && !matches!(text, "." | "..")
        && !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace());
    // The kernel would take these. iptables-restore would not take them for part of a name, and a
    // terminal that shows the rules might obey them.
    let plain = text != "!" && !text.contains(|c: char| c.is_control() || "\"'\\".contains(c));
    if !valid || !plain {
        return Err(format!("{:?} is not an interface name", shortened(text)));
    }
    if text.ends_with('+') {
        return Err(format!(
            "{text:?} is iptables' pattern for every interface whose name begins so; name each"
        ));
    }
    Ok(text.to_owned())
}
