//! Kuma: version 3 has all settings in an annotation. Before that they are arguments of kuma-init, and without it, for
//! Kuma's CNI plugin, annotations.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;
use sidetrack_common::policy::OWNER_ENTRIES;

use super::{flags, init_words, nothing, settings_annotation};
use crate::{
    dialect::Dialect,
    exclusions::{OwnerExclusion, Protocol, Span},
    facts::PodFacts,
    inputs::Sourced,
    manifest,
    mesh_name::MeshName,
    names::kuma,
    parse::{reader::Settings, values},
    policy::{DnsCapture, InboundPorts, OutboundRanges, Policy},
};

const UID: &str = "5678";

/// Switches of `kumactl install transparent-proxy`.
const SWITCHES: [&str; 13] = [
    "--dry-run",
    "--verbose",
    "--redirect-inbound",
    "--redirect-dns",
    "--redirect-all-dns-traffic",
    "--store-firewalld",
    "--skip-dns-conntrack-zone-split",
    "--drop-invalid-packets",
    "--ebpf-enabled",
    "--iptables-logs",
    "--disable-comments",
    "--redirect-inbound-insert-instead-of-append",
    "--redirect-outbound-insert-instead-of-append",
];

/// Settings as raw values, by the names of the configuration. A missing one is Kuma's default.
#[derive(Default)]
struct Raw {
    user: Option<Sourced>,
    families: Option<Sourced>,
    inbound: Flow,
    outbound: Flow,
    dns: Option<Sourced>,
    all_dns: Option<Sourced>,
    dns_port: Option<Sourced>,
    networks: Option<Sourced>,
    ebpf: Option<Sourced>,
}

/// The settings of a direction.
#[derive(Default)]
struct Flow {
    enabled: Option<Sourced>,
    port: Option<Sourced>,
    include: Option<Sourced>,
    exclude: Option<Sourced>,
    for_users: Option<Sourced>,
    for_ips: Option<Sourced>,
    insert: Option<Sourced>,
}

/// The policy.
pub(super) fn policy(pod: &PodFacts, settings: &mut Settings) -> Policy {
    let raw = if let Some(found) = settings_annotation(pod, kuma::CONFIG) {
        by_configuration(&found, settings)
    } else if let Some((words, place)) = init_words(pod, MeshName::Kuma, settings) {
        by_arguments(&words, &place)
    } else {
        by_annotations(pod)
    };
    validated(raw, settings)
}

/// A node of the configuration by its path.
fn at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let node = path
        .split('.')
        .try_fold(root, |node, name| node.get(name))?;
    (!node.is_null()).then_some(node)
}

fn by_configuration(found: &Sourced, settings: &mut Settings) -> Raw {
    #[derive(Deserialize)]
    struct Any(Value);
    let documents: anyhow::Result<Vec<Any>> = manifest::parse_yaml(&found.value);
    let root = match documents.as_deref() {
        Ok([Any(root)]) => root.clone(),
        _ => {
            settings.refuse(found, "it is not one YAML document");
            return Raw::default();
        }
    };
    let mut value = |path: &str| {
        let node = at(&root, path)?;
        let origin = format!("{path} in {}", found.origin);
        // Commas may be within an entry.
        let entries = node.as_array().filter(|_| path.ends_with("UIDs"));
        let value = match entries {
            Some(entries) => entries
                .iter()
                .map(manifest::words)
                .collect::<Result<Vec<_>, _>>()
                .map(|entries| entries.join(";")),
            None => manifest::words(node),
        };
        match value {
            Ok(value) => Some(Sourced { value, origin }),
            Err(problem) => {
                let value = node.to_string();
                settings.refuse(&Sourced { value, origin }, problem);
                None
            }
        }
    };
    let mut flow = |name: &str| {
        let mut of = |field: &str| value(&format!("redirect.{name}.{field}"));
        Flow {
            enabled: of("enabled"),
            port: of("port"),
            include: of("includePorts"),
            exclude: of("excludePorts"),
            for_users: of("excludePortsForUIDs"),
            for_ips: of("excludePortsForIPs"),
            insert: of("insertRedirectInsteadOfAppend"),
        }
    };
    let (inbound, outbound) = (flow("inbound"), flow("outbound"));
    Raw {
        user: value("kumaDPUser"),
        families: value("ipFamilyMode"),
        inbound,
        outbound,
        dns: value("redirect.dns.enabled"),
        all_dns: value("redirect.dns.captureAll"),
        dns_port: value("redirect.dns.port"),
        networks: value("redirect.vnet.networks"),
        ebpf: value("ebpf.enabled"),
    }
}

fn by_arguments(words: &[String], place: &str) -> Raw {
    let mut raw = Raw::default();
    for (flag, found) in flags(words, &SWITCHES, place) {
        let field = match flag.as_str() {
            "--kuma-dp-uid" | "--kuma-dp-user" => &mut raw.user,
            "--ip-family-mode" => &mut raw.families,
            "--redirect-inbound" => &mut raw.inbound.enabled,
            "--redirect-inbound-port" => &mut raw.inbound.port,
            "--redirect-outbound-port" => &mut raw.outbound.port,
            "--exclude-inbound-ports" => &mut raw.inbound.exclude,
            "--exclude-outbound-ports" => &mut raw.outbound.exclude,
            "--exclude-inbound-ips" => &mut raw.inbound.for_ips,
            "--exclude-outbound-ips" => &mut raw.outbound.for_ips,
            "--exclude-outbound-ports-for-uids" => &mut raw.outbound.for_users,
            "--redirect-outbound-insert-instead-of-append" => &mut raw.outbound.insert,
            "--redirect-dns" => &mut raw.dns,
            "--redirect-all-dns-traffic" => &mut raw.all_dns,
            "--redirect-dns-port" => &mut raw.dns_port,
            "--vnet" => &mut raw.networks,
            "--ebpf-enabled" => &mut raw.ebpf,
            _ => continue,
        };
        // Some can be given several times.
        match field {
            Some(before) if flag.contains("-ips") || flag.ends_with("-for-uids") => {
                before.value = format!("{};{}", before.value, found.value);
            }
            _ => *field = Some(found),
        }
    }
    // `--redirect-all-dns-traffic` stands for both.
    if raw.dns.is_none() {
        raw.dns = raw.all_dns.clone();
    }
    raw.all_dns.get_or_insert_with(|| Sourced {
        value: "false".to_owned(),
        origin: place.to_owned(),
    });
    raw
}

fn by_annotations(pod: &PodFacts) -> Raw {
    let of = |name| settings_annotation(pod, name);
    let dns = of(kuma::DNS).map(|found| Sourced {
        value: (found.value == "enabled").to_string(),
        ..found
    });
    Raw {
        user: of(kuma::UID),
        families: of(kuma::FAMILIES),
        inbound: Flow {
            // 0 for a gateway.
            enabled: of(kuma::INBOUND_PORT).map(|found| Sourced {
                value: (found.value != "0").to_string(),
                ..found
            }),
            port: of(kuma::INBOUND_PORT).filter(|found| found.value != "0"),
            exclude: of(kuma::EXCLUDE_INBOUND_PORTS),
            for_ips: of(kuma::EXCLUDE_INBOUND_IPS),
            ..Flow::default()
        },
        outbound: Flow {
            port: of(kuma::OUTBOUND_PORT),
            exclude: of(kuma::EXCLUDE_OUTBOUND_PORTS),
            for_users: of(kuma::EXCLUDE_FOR_UIDS),
            for_ips: of(kuma::EXCLUDE_OUTBOUND_IPS),
            ..Flow::default()
        },
        all_dns: dns.clone(),
        dns,
        dns_port: of(kuma::DNS_PORT),
        ..Raw::default()
    }
}

/// Refuses what is asked for and cannot be done.
fn refuse(raw: &Raw, settings: &mut Settings) {
    let asked = |found: &Option<Sourced>| found.clone().filter(|found| !found.value.is_empty());
    if let Some(found) = asked(&raw.networks) {
        settings.refuse(
            &found,
            "traffic of virtual networks is forwarded through the pod, and is not intercepted; use kuma-init for this pod",
        );
    }
    if let Some(found) = asked(&raw.inbound.for_users) {
        settings.refuse(&found, "no rule for it is known; remove it");
    }
    if let Some(found) = asked(&raw.ebpf)
        && is_on(&raw.ebpf, false, settings)
    {
        settings.refuse(
            &found,
            "Kuma's own programs would redirect the pod as well; write false",
        );
    }
}

fn is_on(found: &Option<Sourced>, usual: bool, settings: &mut Settings) -> bool {
    let value = found
        .as_ref()
        .and_then(|found| settings.one(found, values::boolean));
    value.unwrap_or(usual)
}

fn port(found: &Option<Sourced>, usual: u16, settings: &mut Settings) -> u16 {
    let value = found
        .as_ref()
        .and_then(|found| settings.one(found, values::port));
    value.unwrap_or(usual)
}

fn validated(raw: Raw, settings: &mut Settings) -> Policy {
    refuse(&raw, settings);
    let built_in = Policy::default();
    let user = raw.user.unwrap_or_else(|| Sourced {
        value: UID.to_owned(),
        origin: "the default".to_owned(),
    });
    let has_dns = is_on(&raw.dns, false, settings);
    let ipv4_only = raw
        .families
        .as_ref()
        .and_then(|found| settings.one(found, ipv4_only));
    let mut policy = Policy {
        dialect: Dialect::Kuma,
        inbound_port: port(&raw.inbound.port, built_in.inbound_port, settings),
        outbound_port: port(&raw.outbound.port, built_in.outbound_port, settings),
        proxy_uids: settings.one(&user, values::id).into_iter().collect(),
        dual_stack: true,
        ipv4_only: ipv4_only.unwrap_or(false),
        dns: match is_on(&raw.all_dns, true, settings) {
            _ if !has_dns => DnsCapture::Off,
            true => DnsCapture::All,
            false => DnsCapture::Servers(None),
        },
        dns_port: port(&raw.dns_port, built_in.dns_port, settings),
        ..nothing()
    };
    let mut list = |found: &Option<Sourced>| settings.list(found.as_ref(), ',', values::port);
    let (only, except) = (list(&raw.inbound.include), list(&raw.inbound.exclude));
    policy.inbound = match only.is_empty() {
        true => InboundPorts::AllExcept(except),
        false => InboundPorts::Only(only),
    };
    policy.included_outbound_ports = list(&raw.outbound.include);
    policy.excluded_outbound_ports = list(&raw.outbound.exclude);
    if !policy.included_outbound_ports.is_empty() {
        policy.outbound = OutboundRanges::Only(Vec::new());
        policy.excluded_outbound_ports.clear();
    }
    let users = users(raw.outbound.for_users.as_ref(), settings);
    let exclusions = &mut policy.exclusions;
    exclusions.owners = users;
    exclusions.destinations = ranges(raw.outbound.for_ips, settings);
    exclusions.captures_dns_over_tcp = is_on(&raw.outbound.insert, false, settings);
    if is_on(&raw.inbound.enabled, true, settings) {
        exclusions.sources = ranges(raw.inbound.for_ips, settings);
    } else {
        policy.inbound = InboundPorts::None;
    }
    if !is_on(&raw.outbound.enabled, true, settings) {
        policy.exclusions.outbound_off = true;
        policy.excluded_outbound_ports.clear();
    }
    policy
}

/// What is left alone by user.
fn users(found: Option<&Sourced>, settings: &mut Settings) -> Vec<OwnerExclusion> {
    let users = settings.list(found, ';', for_users);
    let users: Vec<OwnerExclusion> = users.into_iter().flatten().collect();
    if users.len() > OWNER_ENTRIES as usize
        && let Some(found) = found
    {
        settings.refuse(
            found,
            "it stands for more than 29 rules, one for each protocol; write fewer",
        );
    }
    users
}

/// Addresses and ranges, with commas or semicolons between them.
fn ranges(found: Option<Sourced>, settings: &mut Settings) -> Vec<IpNet> {
    let found = found.map(|found| Sourced {
        value: found.value.replace(';', ","),
        ..found
    });
    settings.list(found.as_ref(), ',', values::range)
}

fn ipv4_only(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "ipv4" => Ok(true),
        "" | "dualstack" => Ok(false),
        _ => Err("write dualstack or ipv4".to_owned()),
    }
}

/// `protocols:ports:users`, where one or two may be left out from the left: a rule for each protocol.
fn for_users(text: &str) -> Result<Vec<OwnerExclusion>, String> {
    let mut parts = text.rsplit(':');
    let users = parts.next().unwrap_or_default();
    let (ports, protocols) = (parts.next().unwrap_or("*"), parts.next().unwrap_or("*"));
    let problem = || {
        format!(
            "{text:?} is no list of protocols, ports and users; write one such as tcp:53,3000-5000:106-108"
        )
    };
    if parts.next().is_some() {
        return Err(problem());
    }
    // kumactl reads a user as sixteen bits.
    let users: Span = users.trim().parse().map_err(|_| problem())?;
    if users.last > u32::from(u16::MAX) {
        return Err(format!(
            "user {} is larger than 65535, the largest that Kuma reads",
            users.last
        ));
    }
    let ports = match ports.trim() {
        "*" | "" => vec![Span::ALL_PORTS],
        ports => ports
            .split(',')
            .map(|port| values::ports(port.trim()))
            .collect::<Result<_, _>>()?,
    };
    let protocols: Vec<Protocol> = match protocols.trim() {
        "*" | "" => vec![Protocol::Tcp, Protocol::Udp],
        protocols => protocols
            .split(',')
            .map(|protocol| match protocol.trim() {
                "tcp" => Ok(Protocol::Tcp),
                "udp" => Ok(Protocol::Udp),
                _ => Err(problem()),
            })
            .collect::<Result<_, _>>()?,
    };
    let exclusion = |protocol| OwnerExclusion {
        users,
        protocol: Some(protocol),
        ports: ports.clone(),
    };
    Ok(protocols.into_iter().map(exclusion).collect())
}
