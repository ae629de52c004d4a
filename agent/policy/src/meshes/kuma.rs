//! Kuma: version 3 has all settings in an annotation. Before that they are arguments of kuma-init, and without it, for
//! Kuma's CNI plugin, annotations. [`PLACES`] says where each setting is.

use std::collections::BTreeMap;

use anyhow::bail;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;
use sidetrack_common::policy::OWNER_ENTRIES;

use super::{assumed_user, flags, init_words, nothing, settings_annotation};
use crate::{
    dialect::Dialect,
    exclusions::{MULTIPORT_SLOTS, OwnerExclusion, Protocol, Span, spans},
    facts::PodFacts,
    inputs::Sourced,
    manifest,
    mesh_name::MeshName,
    names::kuma,
    parse::{reader::Settings, values},
    policy::{DnsCapture, InboundPorts, OutboundRanges, Policy},
    text::shortened,
};

const UID: u32 = 5678;

/// Switches of `kumactl install transparent-proxy`.
const SWITCHES: [&str; 15] = [
    "--dry-run",
    "--verbose",
    "--redirect-inbound",
    "--redirect-dns",
    "--redirect-all-dns-traffic",
    "--store-firewalld",
    "--skip-dns-conntrack-zone-split",
    "--skip-resolv-conf",
    "--experimental-transparent-proxy-engine",
    "--drop-invalid-packets",
    "--ebpf-enabled",
    "--iptables-logs",
    "--disable-comments",
    "--redirect-inbound-insert-instead-of-append",
    "--redirect-outbound-insert-instead-of-append",
];

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    User,
    Families,
    Gateway,
    Inbound,
    InboundPort,
    InboundOnly,
    InboundExcept,
    InboundUsers,
    InboundAddresses,
    ProbePort,
    Outbound,
    OutboundPort,
    OutboundOnly,
    OutboundExcept,
    OutboundUsers,
    OutboundAddresses,
    OutboundFirst,
    Dns,
    AllDns,
    DnsPort,
    OneZone,
    Networks,
    Ebpf,
}

/// Where a setting is: its path in the configuration of version 3, the flag of kuma-init before that, and the annotation
/// that the CNI plugin of version 2 reads, with what the plugin takes for one that is absent. `""` is none: the setting
/// has no such place, or its absence means nothing more than the default of the configuration.
type Place = (
    Setting,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

#[rustfmt::skip]
const PLACES: [Place; 24] = [
    (Setting::User, "kumaDPUser", "--kuma-dp-user", kuma::UID, ""),
    (Setting::User, "", "--kuma-dp-uid", "", ""),
    (Setting::Families, "ipFamilyMode", "--ip-family-mode", kuma::FAMILIES, ""),
    (Setting::Gateway, "", "", kuma::GATEWAY, ""),
    (Setting::Inbound, "redirect.inbound.enabled", "--redirect-inbound", "", ""),
    (Setting::InboundPort, "redirect.inbound.port", "--redirect-inbound-port", kuma::INBOUND_PORT, ""),
    (Setting::InboundOnly, "redirect.inbound.includePorts", "", "", ""),
    (Setting::InboundExcept, "redirect.inbound.excludePorts", "--exclude-inbound-ports", kuma::EXCLUDE_INBOUND_PORTS, "9901"),
    (Setting::InboundUsers, "redirect.inbound.excludePortsForUIDs", "", "", ""),
    (Setting::InboundAddresses, "redirect.inbound.excludePortsForIPs", "--exclude-inbound-ips", kuma::EXCLUDE_INBOUND_IPS, ""),
    (Setting::ProbePort, "", "", kuma::PROBE_PORT, "9001"),
    (Setting::Outbound, "redirect.outbound.enabled", "", "", ""),
    (Setting::OutboundPort, "redirect.outbound.port", "--redirect-outbound-port", kuma::OUTBOUND_PORT, ""),
    (Setting::OutboundOnly, "redirect.outbound.includePorts", "", "", ""),
    (Setting::OutboundExcept, "redirect.outbound.excludePorts", "--exclude-outbound-ports", kuma::EXCLUDE_OUTBOUND_PORTS, "9901"),
    (Setting::OutboundUsers, "redirect.outbound.excludePortsForUIDs", "--exclude-outbound-ports-for-uids", kuma::EXCLUDE_FOR_UIDS, ""),
    (Setting::OutboundAddresses, "redirect.outbound.excludePortsForIPs", "--exclude-outbound-ips", kuma::EXCLUDE_OUTBOUND_IPS, ""),
    (Setting::OutboundFirst, "redirect.outbound.insertRedirectInsteadOfAppend", "--redirect-outbound-insert-instead-of-append", "", ""),
    (Setting::Dns, "redirect.dns.enabled", "--redirect-dns", kuma::DNS, ""),
    (Setting::AllDns, "redirect.dns.captureAll", "--redirect-all-dns-traffic", "", "true"),
    (Setting::DnsPort, "redirect.dns.port", "--redirect-dns-port", kuma::DNS_PORT, ""),
    (Setting::OneZone, "redirect.dns.skipConntrackZoneSplit", "--skip-dns-conntrack-zone-split", "", ""),
    (Setting::Networks, "redirect.vnet.networks", "--vnet", "", ""),
    (Setting::Ebpf, "ebpf.enabled", "--ebpf-enabled", "", ""),
];

/// Flags of version 2.0 for users with ports of one protocol, which stands ahead of the value since.
const FOR_USERS: [(&str, &str); 2] = [
    ("--exclude-outbound-tcp-ports-for-uids", "tcp"),
    ("--exclude-outbound-udp-ports-for-uids", "udp"),
];

const SECOND: &str = "it is a second configuration, which the CNI plugin of Kuma does not read; write its settings into annotation traffic.kuma.io/transparent-proxy-config";
const NOT_IN_MANIFEST: &str = "it is a file that is not in the pod's manifest; write its settings into annotation traffic.kuma.io/transparent-proxy-config";

/// Raw values. A missing one is Kuma's default.
#[derive(Default)]
struct Raw(BTreeMap<Setting, Sourced>);

impl Raw {
    fn get(&self, setting: Setting) -> Option<&Sourced> {
        self.0.get(&setting)
    }

    /// Continues a list that is there.
    fn append(&mut self, setting: Setting, found: Sourced) {
        match self.0.get_mut(&setting) {
            Some(before) => before.value = format!("{};{}", before.value, found.value),
            None => drop(self.0.insert(setting, found)),
        }
    }

    fn is_on(&self, setting: Setting, usual: bool, settings: &mut Settings) -> bool {
        let found = self.get(setting);
        let value = found.and_then(|found| settings.one(found, is_enabled));
        value.unwrap_or(usual)
    }

    fn port(&self, setting: Setting, usual: u16, settings: &mut Settings) -> u16 {
        let found = self.get(setting);
        let value = found.and_then(|found| settings.one(found, values::port));
        value.unwrap_or(usual)
    }
}

/// The policy.
pub(super) fn policy(pod: &PodFacts, settings: &mut Settings) -> Policy {
    let annotation = settings_annotation(pod, kuma::CONFIG).filter(|found| !found.value.is_empty());
    let arguments = init_words(pod, MeshName::Kuma, settings)
        .map(|(words, place)| (flags(&words, &SWITCHES, &place), place));
    let raw = if let Some(found) = annotation {
        // kuma-init reads it as a file. A second one is the pod author's, which its CNI plugin does not read.
        let mut files = arguments
            .iter()
            .flat_map(|(flags, _)| configurations(flags));
        if let Some(second) = files.nth(1) {
            settings.refuse(second, SECOND);
        }
        by_configuration(&found, settings)
    } else if let Some((flags, place)) = arguments {
        by_arguments(flags, &place, settings)
    } else {
        let mut raw = by_annotations(pod);
        let runs_as = pod.run_as(MeshName::Kuma).user;
        if raw.get(Setting::User).is_none() {
            if runs_as.is_none() {
                settings.remarks.push(assumed_user(&UID.to_string()));
            }
            let value = runs_as.unwrap_or(UID).to_string();
            let origin = "runAsUser of the sidecar".to_owned();
            raw.0.insert(Setting::User, Sourced { value, origin });
        }
        raw
    };
    validated(&raw, settings)
}

/// A node of the configuration by its path.
fn at<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let node = path
        .split('.')
        .try_fold(root, |node, name| node.get(name))?;
    (!node.is_null()).then_some(node)
}

fn by_configuration(found: &Sourced, settings: &mut Settings) -> Raw {
    /// Kuma's own has about a hundred, and each list may be one value. The reconciler waits for it, a millisecond or two.
    const MAX_NODES: usize = 4096;
    #[derive(Deserialize)]
    struct Any(Value);
    let documents = manifest::parse_yaml::<Any>(&found.value, MAX_NODES);
    let root = documents.and_then(|documents| match <[Any; 1]>::try_from(documents) {
        Ok([Any(root)]) if root.is_object() || root.is_null() => Ok(root),
        _ => bail!("it is not one YAML document with settings"),
    });
    let mut raw = Raw::default();
    let root = match root {
        Ok(root) => root,
        Err(problem) => {
            settings.refuse(found, &problem.to_string());
            return raw;
        }
    };
    for (setting, path, ..) in PLACES {
        let Some(node) = at(&root, path).filter(|_| !path.is_empty()) else {
            continue;
        };
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
            Ok(value) => drop(raw.0.insert(setting, Sourced { value, origin })),
            Err(problem) => {
                let value = node.to_string();
                settings.refuse(&Sourced { value, origin }, problem);
            }
        }
    }
    raw
}

/// What kuma-init is given as a whole configuration: the name of a file, or its text.
fn configurations(flags: &[(String, Sourced)]) -> impl Iterator<Item = &Sourced> {
    let is_one = |flag: &&(String, Sourced)| flag.0 == "--config";
    flags.iter().filter(is_one).map(|(_, found)| found)
}

fn by_arguments(flags: Vec<(String, Sourced)>, place: &str, settings: &mut Settings) -> Raw {
    let mut raw = Raw::default();
    let mut has_configuration = false;
    // Of two the later one wins, and flags of their own over both.
    for found in configurations(&flags) {
        if found.value.starts_with('/') {
            settings.refuse(found, NOT_IN_MANIFEST);
        } else {
            has_configuration = true;
            raw.0.extend(by_configuration(found, settings).0);
        }
    }
    for (flag, mut found) in flags {
        if let Some((_, protocol)) = FOR_USERS.iter().find(|(name, _)| *name == flag) {
            found.value = format!("{protocol}:{}", found.value);
            raw.append(Setting::OutboundUsers, found);
            continue;
        }
        let mut places = PLACES.iter();
        match places.find(|(_, _, name, ..)| *name == flag) {
            // These can be given several times.
            Some((
                setting @ (Setting::OutboundUsers
                | Setting::InboundAddresses
                | Setting::OutboundAddresses),
                ..,
            )) => raw.append(*setting, found),
            Some((setting, ..)) => drop(raw.0.insert(*setting, found)),
            None => {}
        }
    }
    if has_configuration {
        return raw;
    }
    // `--redirect-all-dns-traffic` stands for both.
    if let Some(all) = raw.get(Setting::AllDns).cloned() {
        raw.0.entry(Setting::Dns).or_insert(all);
    }
    let origin = place.to_owned();
    raw.0.entry(Setting::AllDns).or_insert_with(|| Sourced {
        value: "false".to_owned(),
        origin,
    });
    raw
}

fn by_annotations(pod: &PodFacts) -> Raw {
    let mut raw = Raw::default();
    for (setting, _, _, name, absent) in PLACES {
        let found = settings_annotation(pod, name);
        let absent = (!absent.is_empty()).then(|| Sourced {
            value: absent.to_owned(),
            origin: format!("kuma-cni, as annotation {name} is absent"),
        });
        if let Some(found) = found.or(absent) {
            raw.0.insert(setting, found);
        }
    }
    raw
}

/// Refuses what is asked for and cannot be done.
fn refuse(raw: &Raw, settings: &mut Settings) {
    let asked = |setting| raw.get(setting).filter(|found| !found.value.is_empty());
    if let Some(found) = asked(Setting::Networks) {
        settings.refuse(
            found,
            "traffic of virtual networks is forwarded through the pod, and is not intercepted; use kuma-init for this pod",
        );
    }
    if let Some(found) = asked(Setting::InboundUsers) {
        settings.refuse(found, "no rule for it is known; remove it");
    }
    if let Some(found) = asked(Setting::Ebpf)
        && raw.is_on(Setting::Ebpf, false, settings)
    {
        settings.refuse(
            found,
            "Kuma's own programs would redirect the pod as well; write false",
        );
    }
}

/// The words that Kuma's own program accepts in annotations (`GetEnabled` of 2.14). Its injector writes no others in arguments.
fn is_enabled(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "enabled" | "true" => Ok(true),
        "disabled" | "false" => Ok(false),
        _ => Err("write enabled or disabled".to_owned()),
    }
}

fn validated(raw: &Raw, settings: &mut Settings) -> Policy {
    refuse(raw, settings);
    let built_in = Policy::default();
    let user = raw.get(Setting::User);
    let user = user.filter(|found| !found.value.is_empty());
    let user = match user {
        Some(found) => settings.one(found, values::id),
        None => Some(UID),
    };
    let has_dns = raw.is_on(Setting::Dns, false, settings);
    let is_gateway = raw.is_on(Setting::Gateway, false, settings);
    let families = raw.get(Setting::Families);
    let ipv4_only = families.and_then(|found| settings.one(found, ipv4_only));
    let mut policy = Policy {
        dialect: Dialect::Kuma,
        inbound_port: match raw.get(Setting::InboundPort) {
            // Older injectors write 0.
            Some(port) if is_gateway && port.value == "0" => built_in.inbound_port,
            _ => raw.port(Setting::InboundPort, built_in.inbound_port, settings),
        },
        outbound_port: raw.port(Setting::OutboundPort, built_in.outbound_port, settings),
        proxy_uids: user.into_iter().collect(),
        dual_stack: true,
        ipv4_only: ipv4_only.unwrap_or(false),
        dns: match raw.is_on(Setting::AllDns, false, settings) {
            _ if !has_dns => DnsCapture::Off,
            true => DnsCapture::All,
            false => DnsCapture::Servers(None),
        },
        // Kuma writes 0 where DNS is off.
        dns_port: match has_dns {
            true => raw.port(Setting::DnsPort, built_in.dns_port, settings),
            false => built_in.dns_port,
        },
        ..nothing()
    };
    let mut list = |setting| spans(settings.list(raw.get(setting), ',', values::port));
    let (only, mut except) = (list(Setting::InboundOnly), list(Setting::InboundExcept));
    policy.included_outbound_ports = list(Setting::OutboundOnly);
    policy.excluded_outbound_ports = list(Setting::OutboundExcept);
    let probe_port = raw.get(Setting::ProbePort);
    let probe_port = probe_port.and_then(|found| settings.one(found, values::port_or_zero));
    except.extend(spans(probe_port.filter(|port| *port != 0)));
    policy.inbound = match only.is_empty() {
        true => InboundPorts::AllExcept(except),
        false => InboundPorts::Only(only),
    };
    if !policy.included_outbound_ports.is_empty() {
        policy.outbound = OutboundRanges::Only(Vec::new());
        policy.excluded_outbound_ports.clear();
    }
    let users = users(raw.get(Setting::OutboundUsers), settings);
    let exclusions = &mut policy.exclusions;
    exclusions.owners = users;
    exclusions.destinations = ranges(raw.get(Setting::OutboundAddresses), settings);
    exclusions.captures_dns_over_tcp = raw.is_on(Setting::OutboundFirst, false, settings);
    exclusions.dns_in_one_zone = raw.is_on(Setting::OneZone, false, settings);
    if raw.is_on(Setting::Inbound, true, settings) && !is_gateway {
        exclusions.sources = ranges(raw.get(Setting::InboundAddresses), settings);
    } else {
        policy.inbound = InboundPorts::None;
    }
    if !raw.is_on(Setting::Outbound, true, settings) {
        policy.exclusions.outbound_off = true;
        policy.excluded_outbound_ports.clear();
    }
    policy
}

/// What is not redirected by user.
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
fn ranges(found: Option<&Sourced>, settings: &mut Settings) -> Vec<IpNet> {
    let found = found.map(|found| Sourced {
        value: found.value.replace(';', ","),
        origin: found.origin.clone(),
    });
    settings.list(found.as_ref(), ',', values::range)
}

fn ipv4_only(text: &str) -> Result<bool, String> {
    // Kuma takes other spellings, and compares with this one where it writes the rules.
    match (text, text.to_ascii_lowercase().as_str()) {
        ("ipv4", _) => Ok(true),
        (_, "" | "dualstack" | "ipv4") => Ok(false),
        _ => Err("write dualstack or ipv4".to_owned()),
    }
}

/// `protocols:ports:users`, where the first one or two may be omitted: a rule for each protocol.
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
    // One rule has them all, and iptables-restore refuses it.
    if ports
        .iter()
        .map(|ports: &Span| ports.slots())
        .sum::<usize>()
        > MULTIPORT_SLOTS
    {
        return Err(format!(
            "{:?} has more than {MULTIPORT_SLOTS} ports, where a range counts as two: iptables takes no more; write several entries",
            shortened(text)
        ));
    }
    let protocols: Vec<Protocol> = match protocols.trim() {
        "*" | "" => vec![Protocol::Tcp, Protocol::Udp],
        protocols => protocols
            .split(',')
            .map(
                |protocol| match protocol.trim().to_ascii_lowercase().as_str() {
                    "tcp" => Ok(Protocol::Tcp),
                    "udp" => Ok(Protocol::Udp),
                    _ => Err(problem()),
                },
            )
            .collect::<Result<_, _>>()?,
    };
    let exclusion = |protocol| OwnerExclusion {
        users,
        protocol: Some(protocol),
        ports: ports.clone(),
    };
    Ok(protocols.into_iter().map(exclusion).collect())
}
