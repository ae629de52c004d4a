//! Defaults for all pods: flags `NAME=VALUE` and the configuration file.

use std::{collections::BTreeMap, net::IpAddr, path::Path, str::FromStr};

use anyhow::{Context as _, Result, anyhow, bail};
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    dialect::Dialect,
    inputs::{Input, Inputs},
    manifest,
    policy::Policy,
};

/// Names of defaults. Those that have an annotation are named as it is, without the prefix.
const NAMES: [(&str, Input); 21] = [
    ("dialect", Input::Dialect),
    ("outboundPort", Input::EnvoyPort),
    ("inboundPort", Input::InboundCapturePort),
    ("tunnelPort", Input::InboundTunnelPort),
    ("proxyUid", Input::ProxyUid),
    ("proxyGid", Input::ProxyGid),
    ("interceptionMode", Input::InterceptionMode),
    ("includeInboundPorts", Input::InboundPorts),
    ("excludeInboundPorts", Input::ExcludeInboundPorts),
    ("statusPort", Input::StatusPort),
    ("includeOutboundIPRanges", Input::ServiceCidr),
    ("excludeOutboundIPRanges", Input::ServiceExcludeCidr),
    ("includeOutboundPorts", Input::OutboundPorts),
    ("excludeOutboundPorts", Input::OutboundPortsExclude),
    ("excludeInterfaces", Input::ExcludeInterfaces),
    ("virtualInterfaces", Input::VirtualInterfaces),
    ("outboundIPv4LoopbackCIDR", Input::LoopbackCidr),
    ("outboundOwnerGroups", Input::OwnerGroups),
    ("outboundOwnerGroupsExclude", Input::OwnerGroupsExclude),
    ("dualStack", Input::DualStack),
    ("accelerate", Input::Accelerate),
];

/// `NAME=VALUE` on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultFlag {
    input: Input,
    name: &'static str,
    value: String,
}

impl FromStr for DefaultFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text
            .split_once('=')
            .ok_or("write NAME=VALUE, such as excludeOutboundPorts=3306")?;
        let (name, input) = known(name)?;
        let value = with_lengths(input, value);
        let mut inputs = Inputs::default();
        inputs.set(input, &value, name.to_owned());
        match Policy::of_inputs(&inputs) {
            Ok(_) => Ok(Self { input, name, value }),
            Err(errors) => {
                let problems = errors.into_iter().map(|error| error.problem);
                Err(problems.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Whether flags can be used together, without a file.
///
/// # Errors
/// If not, why.
pub fn check(flags: &[DefaultFlag]) -> Result<(), String> {
    defaults(flags, None)
        .map(drop)
        .map_err(|problem| problem.to_string())
}

/// The configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    defaults: Option<BTreeMap<String, Value>>,
}

/// Defaults from the command line and, weaker, from a configuration file's text.
///
/// # Errors
/// If the text is not a configuration, or a value cannot be used.
pub fn defaults(flags: &[DefaultFlag], file: Option<(&Path, &str)>) -> Result<Inputs> {
    let mut inputs = Inputs::default();
    // As everywhere on command lines, of two the last one counts.
    for flag in flags.iter().rev() {
        let origin = format!("--default {}", flag.name);
        inputs.set(flag.input, &flag.value, origin);
    }
    if let Some((path, text)) = file {
        let listed = from_file(path, text).with_context(|| format!("{}", path.display()))?;
        inputs.add(listed);
    }
    let policy = match Policy::of_inputs(&inputs) {
        Ok(policy) => policy,
        Err(errors) => {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            bail!("{}", all.join("; "));
        }
    };
    let ports = [Input::EnvoyPort, Input::InboundCapturePort];
    let is_set = |port: &Input| inputs.get(*port).is_some();
    // Rules of old Istio versions have one port for both directions unless configured otherwise.
    if ports.iter().any(is_set)
        && policy.outbound_port == policy.inbound_port
        && has_two_ports(&policy)
    {
        bail!(
            "outboundPort and inboundPort are both {}; a sidecar needs two ports to distinguish the directions",
            policy.inbound_port
        );
    }
    Ok(inputs)
}

/// Whether the rules' inbound connections go to a port of their own.
fn has_two_ports(policy: &Policy) -> bool {
    !matches!(policy.dialect, Dialect::V1_1 | Dialect::V1_5)
}

/// Reads a configuration file.
///
/// # Errors
/// If it cannot be read.
pub fn read(path: &Path) -> Result<String> {
    manifest::read_text(path).with_context(|| format!("{}", path.display()))
}

fn from_file(path: &Path, text: &str) -> Result<Inputs> {
    // An empty file, or one of comments, configures nothing.
    let mut documents: Vec<Option<File>> = manifest::parse_yaml(text, manifest::MAX_NODES)?;
    let file = documents.pop().flatten();
    if !documents.is_empty() {
        bail!("it has several documents; write one");
    }
    let defaults = file.and_then(|file| file.defaults).unwrap_or_default();
    let mut inputs = Inputs::default();
    for (name, value) in defaults {
        let (name, input) = known(&name).map_err(anyhow::Error::msg)?;
        let value =
            manifest::words(&value).map_err(|problem| anyhow!("defaults.{name} {problem}"))?;
        let value = with_lengths(input, &value);
        let origin = format!("defaults.{name} in {}", path.display());
        inputs.set(input, &value, origin);
    }
    Ok(inputs)
}

/// Here an address stands for itself. Annotations and arguments are read as Istio does, which wants a length.
fn with_lengths(input: Input, value: &str) -> String {
    if !matches!(input, Input::ServiceCidr | Input::ServiceExcludeCidr) {
        return value.to_owned();
    }
    let entry = |entry: &str| match entry.trim().parse::<IpAddr>() {
        Ok(addr) => IpNet::from(addr).to_string(),
        Err(_) => entry.to_owned(),
    };
    value.split(',').map(entry).collect::<Vec<_>>().join(",")
}

fn known(name: &str) -> Result<(&'static str, Input), String> {
    NAMES
        .into_iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!(
                "{name:?} is not a default; the defaults are {}",
                names.join(", ")
            )
        })
}

#[cfg(test)]
mod tests;
