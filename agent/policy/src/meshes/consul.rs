//! Consul: a JSON text has all settings. It is in a variable of the init container, or, for Consul's CNI plugin, in an
//! annotation. What connect-init then takes from Consul's servers instead is not to be seen in Kubernetes.

use std::net::IpAddr;

use serde::Deserialize;

use super::{nothing, settings_annotation};
use crate::{
    dialect::Dialect,
    exclusions::{OwnerExclusion, Span},
    facts::PodFacts,
    inputs::Sourced,
    mesh_name::MeshName,
    names::consul::{CONFIG, DUAL_STACK, DUAL_STACK_VARIABLE, VARIABLE},
    parse::{reader::Settings, values},
    policy::{DnsCapture, Policy},
};

const OUTBOUND_PORT: u16 = 15001;

/// `iptables.Config` of consul/sdk.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Config {
    #[serde(rename = "ConsulDNSIP")]
    dns_ip: String,
    #[serde(rename = "ConsulDNSPort")]
    dns_port: u32,
    #[serde(rename = "ProxyUserID")]
    proxy_user: String,
    proxy_inbound_port: u32,
    proxy_outbound_port: u32,
    exclude_inbound_ports: Option<Vec<String>>,
    exclude_outbound_ports: Option<Vec<String>>,
    #[serde(rename = "ExcludeOutboundCIDRs")]
    exclude_outbound_cidrs: Option<Vec<String>>,
    #[serde(rename = "ExcludeUIDs")]
    exclude_uids: Option<Vec<String>>,
}

/// The policy.
pub(super) fn policy(pod: &PodFacts, settings: &mut Settings) -> Policy {
    let base = Policy {
        dialect: Dialect::Consul,
        ..nothing()
    };
    let Some(text) = text(pod) else {
        settings.refuse(
            &Sourced {
                value: String::new(),
                origin: format!("annotation {CONFIG}"),
            },
            "it is missing, and so is the init container with the same settings; inject the pod again",
        );
        return base;
    };
    let config: Config = match serde_json::from_str(&text.value) {
        Ok(config) => config,
        Err(wrong) => {
            settings.refuse(
                &text,
                &format!("it cannot be read (column {})", wrong.column()),
            );
            return base;
        }
    };
    let field = |name: &str, value: String| Sourced {
        value,
        origin: format!("{name} in {}", text.origin),
    };
    // Each is inserted before those that are there.
    let list = |name: &str, items: &Option<Vec<String>>| {
        let items = items.iter().flatten().rev();
        field(name, items.cloned().collect::<Vec<_>>().join(","))
    };
    let inbound = field("ProxyInboundPort", config.proxy_inbound_port.to_string());
    let outbound = match config.proxy_outbound_port {
        0 => OUTBOUND_PORT.into(),
        port => port,
    };
    let outbound = field("ProxyOutboundPort", outbound.to_string());
    let user = field("ProxyUserID", config.proxy_user.clone());
    let users = list("ExcludeUIDs", &config.exclude_uids);
    let ranges = list("ExcludeOutboundCIDRs", &config.exclude_outbound_cidrs);
    let inbound_ports = list("ExcludeInboundPorts", &config.exclude_inbound_ports);
    let outbound_ports = list("ExcludeOutboundPorts", &config.exclude_outbound_ports);
    let is_dual = is_dual(pod);
    let mut policy = Policy {
        dual_stack: is_dual,
        ipv4_only: !is_dual,
        inbound_port: settings.one(&inbound, values::port).unwrap_or_default(),
        outbound_port: settings.one(&outbound, values::port).unwrap_or_default(),
        proxy_uids: settings.one(&user, values::owner).into_iter().collect(),
        ..base
    };
    let exclusions = &mut policy.exclusions;
    exclusions.owners = settings.list(Some(&users), ',', |text| {
        text.parse().map(|users: Span| OwnerExclusion {
            users,
            protocol: None,
            ports: Vec::new(),
        })
    });
    exclusions.destinations = settings.list(Some(&ranges), ',', values::range);
    // They go to iptables as they are.
    exclusions.inbound_ports = settings.list(Some(&inbound_ports), ',', values::plain_ports);
    exclusions.outbound_ports = settings.list(Some(&outbound_ports), ',', values::plain_ports);
    if config.dns_port != 0 || !config.dns_ip.is_empty() {
        policy.dns = DnsCapture::All;
        policy.dns_port = dns_port(&config, &field, settings);
    }
    policy
}

/// Where the sidecar answers queries.
fn dns_port(
    config: &Config,
    field: &impl Fn(&str, String) -> Sourced,
    settings: &mut Settings,
) -> u16 {
    let address = field("ConsulDNSIP", config.dns_ip.clone());
    let is_loopback = |ip: IpAddr| ip.to_string() == "127.0.0.1" || ip.to_string() == "::1";
    if !config.dns_ip.is_empty() && !config.dns_ip.parse().is_ok_and(is_loopback) {
        settings.refuse(
            &address,
            "only 127.0.0.1 and ::1 are served, where the sidecar answers",
        );
    }
    let port = field("ConsulDNSPort", config.dns_port.to_string());
    settings.one(&port, values::port).unwrap_or_default()
}

/// Whether there are rules for IPv6. connect-init reads a variable, Consul's CNI plugin the annotation; the injector writes
/// both. Both compare with this one word.
fn is_dual(pod: &PodFacts) -> bool {
    let init = pod.init_of(MeshName::Consul);
    let init = init.filter(|init| init.env.contains_key(VARIABLE));
    let variable = init.and_then(|init| {
        let value = init.env.get(DUAL_STACK_VARIABLE);
        in_variable(value, DUAL_STACK_VARIABLE, init.name)
    });
    let found = variable.or_else(|| settings_annotation(pod, DUAL_STACK));
    found.is_some_and(|found| found.value == "true")
}

/// The value of a variable.
fn in_variable(value: Option<&String>, name: &str, place: &str) -> Option<Sourced> {
    let value = value?.clone();
    let origin = format!("variable {name} of {place}");
    Some(Sourced { value, origin })
}

/// The settings' text.
fn text(pod: &PodFacts) -> Option<Sourced> {
    if let Some(init) = pod.init_of(MeshName::Consul)
        && let Some(found) = in_variable(init.env.get(VARIABLE), VARIABLE, init.name)
    {
        return Some(found);
    }
    settings_annotation(pod, CONFIG)
}
