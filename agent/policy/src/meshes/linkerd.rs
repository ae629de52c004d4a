//! Linkerd: the arguments of linkerd-init are complete. Without it the pod is for Linkerd's CNI plugin: then the sidecar's
//! variables have the ports, annotations the exclusions, and, before what the sidecar runs as, its user.

use super::{assumed_user, flags, init_words, nothing, settings_annotation};
use crate::{
    dialect::Dialect,
    exclusions::{Span, spans},
    facts::PodFacts,
    inputs::Sourced,
    mesh_name::MeshName,
    names::linkerd::{
        ADMIN, CONTROL, INBOUND, OUTBOUND, PROXY_GID, PROXY_UID, SKIP_INBOUND_PORTS,
        SKIP_OUTBOUND_PORTS, SKIP_SUBNETS,
    },
    parse::{reader::Settings, values},
    policy::{InboundPorts, Policy},
};

const UID: u32 = 2102;
const INBOUND_PORT: u16 = 4143;
const OUTBOUND_PORT: u16 = 4140;
const CONTROL_PORT: u32 = 4190;
const ADMIN_PORT: u32 = 4191;
/// The usual ports of service `default/kubernetes` and of the API server, which the plugin falls back to. The control
/// plane's pods call it before their proxies can serve.
const API_SERVER: [u32; 2] = [443, 6443];

/// Flags of proxy-init without a value.
const SWITCHES: [&str; 4] = ["--simulate", "-w", "--use-wait-flag", "--ipv6"];

/// The policy.
pub(super) fn policy(pod: &PodFacts, settings: &mut Settings) -> Policy {
    let mut policy = Policy {
        dialect: Dialect::Linkerd,
        inbound_port: INBOUND_PORT,
        outbound_port: OUTBOUND_PORT,
        proxy_uids: Vec::new(),
        dual_stack: true,
        ..nothing()
    };
    match init_words(pod, MeshName::Linkerd, settings) {
        Some((words, place)) => by_arguments(&mut policy, &words, &place, settings),
        None => by_sidecar(&mut policy, pod, settings),
    }
    policy
}

fn by_arguments(policy: &mut Policy, words: &[String], place: &str, settings: &mut Settings) {
    // Lists that are given again are continued.
    let mut redirected = Vec::new();
    for (flag, found) in flags(words, &SWITCHES, place) {
        let found = &found;
        match flag.as_str() {
            "-p" | "--incoming-proxy-port" => {
                set(&mut policy.inbound_port, settings.one(found, values::port))
            }
            "-o" | "--outgoing-proxy-port" => {
                set(&mut policy.outbound_port, settings.one(found, values::port))
            }
            "-u" | "--proxy-uid" => policy.proxy_uids = owner(found, settings),
            "-g" | "--proxy-gid" => policy.proxy_gids = owner(found, settings),
            "-r" | "--ports-to-redirect" => {
                redirected.extend(settings.list(Some(found), ',', values::port));
            }
            "--inbound-ports-to-ignore" => {
                let list = &mut policy.exclusions.inbound_ports;
                list.extend(ports(Some(found), settings));
            }
            "--outbound-ports-to-ignore" => {
                let list = &mut policy.exclusions.outbound_ports;
                list.extend(ports(Some(found), settings));
            }
            "--subnets-to-ignore" => {
                let list = &mut policy.exclusions.sources;
                list.extend(settings.list(Some(found), ',', values::cidr));
            }
            "--ipv6" => {
                let is_on = settings.one(found, values::boolean);
                policy.ipv4_only = is_on == Some(false);
            }
            _ => {}
        }
    }
    if !redirected.is_empty() {
        policy.inbound = InboundPorts::Only(spans(redirected));
    }
}

fn by_sidecar(policy: &mut Policy, pod: &PodFacts, settings: &mut Settings) {
    let variable = |name: &str| {
        let sidecar = pod.sidecar_of(MeshName::Linkerd)?;
        let value = sidecar.env.get(name)?.clone();
        let origin = format!("variable {name} of {}", sidecar.name);
        Some(Sourced { value, origin })
    };
    let mut port_of = |name: &str| settings.one(&variable(name)?, listen_port);
    set(&mut policy.inbound_port, port_of(INBOUND));
    let outbound = OUTBOUND.iter().find_map(|name| port_of(name));
    set(&mut policy.outbound_port, outbound);
    let own = [(CONTROL, CONTROL_PORT), (ADMIN, ADMIN_PORT)];
    let own = own.map(|(name, usual)| Span::one(port_of(name).map_or(usual, u32::from)));
    // The plugin's chart has IPv6 off unless the sidecar's addresses say that it is on.
    let addresses = OUTBOUND.iter().find_map(|name| variable(name));
    policy.ipv4_only = !addresses.is_some_and(|found| found.value.contains("[::"));
    // The plugin takes an empty one for none.
    let annotation = |name| settings_annotation(pod, name).filter(|found| !found.value.is_empty());
    let skipped = ports(annotation(SKIP_INBOUND_PORTS).as_ref(), settings);
    policy.exclusions.inbound_ports = own.into_iter().chain(skipped).collect();
    policy.exclusions.outbound_ports = ports(annotation(SKIP_OUTBOUND_PORTS).as_ref(), settings);
    let component = &pod.meta.labels.linkerd_component;
    if component.as_ref().is_some_and(|name| !name.is_empty()) {
        let api_server = API_SERVER.map(Span::one);
        policy.exclusions.outbound_ports.extend(api_server);
    }
    let subnets = annotation(SKIP_SUBNETS);
    policy.exclusions.sources = settings.list(subnets.as_ref(), ',', values::cidr);
    let runs_as = pod.run_as(MeshName::Linkerd);
    policy.proxy_uids = match (annotation(PROXY_UID), runs_as.user) {
        (Some(found), _) => owner(&found, settings),
        (None, Some(user)) => vec![user],
        (None, None) => {
            settings.remarks.push(assumed_user(&UID.to_string()));
            vec![UID]
        }
    };
    policy.proxy_gids = match annotation(PROXY_GID) {
        Some(found) => owner(&found, settings),
        None => runs_as.group.into_iter().collect(),
    };
}

/// Entries that cannot be read are dropped, as proxy-init drops them: also those with a blank.
fn ports(found: Option<&Sourced>, settings: &mut Settings) -> Vec<Span> {
    let Some(found) = found else {
        return Vec::new();
    };
    let items = found.value.split(',').filter(|item| !item.is_empty());
    settings.readable(found, items, |item| {
        port_range(item).ok_or_else(String::new)
    })
}

/// `ParsePortRange` of proxy-init.
fn port_range(text: &str) -> Option<Span> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok().map(u32::from);
    let (first, last) = (port(first)?, port(last)?);
    (first <= last).then_some(Span { first, last })
}

/// A user or group; none below 1 has a rule.
fn owner(found: &Sourced, settings: &mut Settings) -> Vec<u32> {
    let is_none = matches!(found.value.trim().parse::<i64>(), Ok(..=0));
    if is_none {
        return Vec::new();
    }
    settings.one(found, values::id).into_iter().collect()
}

/// The port of `0.0.0.0:4143`; of a list, the first one's.
fn listen_port(text: &str) -> Result<u16, String> {
    let first = text.split(',').next().unwrap_or(text);
    let port = first.rsplit_once(':').map_or(first, |(_, port)| port);
    values::port(port)
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}
