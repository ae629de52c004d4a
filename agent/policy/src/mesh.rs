//! What the mesh's operator decides for all pods: which to take, and defaults for what a pod's own
//! manifest leaves open.

use std::{collections::BTreeMap, path::Path, str::FromStr};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    inputs::{Input, Inputs},
    manifest,
    policy::Policy,
    select::Enroll,
};

/// Names of defaults. Those that have an annotation are named as it is, without the prefix.
const NAMES: [(&str, Input); 20] = [
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
];

/// What holds for every pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// Which sidecar pods to take.
    pub enroll: Enroll,
    /// What becomes of pods that name virtual interfaces.
    pub virtual_interfaces: VirtualInterfaces,
    /// Whether the node can tell on which interface a connection arrives (Linux 5.17).
    pub sees_interfaces: bool,
    /// The weakest source of every pod's policy.
    pub defaults: Inputs,
}

impl Mesh {
    /// Built-in defaults.
    #[must_use]
    pub fn new(enroll: Enroll) -> Self {
        Self {
            enroll,
            virtual_interfaces: VirtualInterfaces::Refuse,
            sees_interfaces: true,
            defaults: Inputs::default(),
        }
    }
}

/// What becomes of pods whose policy names virtual interfaces (`-k`). Traffic that only passes
/// through such a pod, from a VM or a nested container, is not seen by socket hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum VirtualInterfaces {
    /// They are not enrolled
    Refuse,
    /// They are enrolled; what is delivered in the pod follows the rules, what passes through it is
    /// left alone
    LocalOnly,
}

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
        let value = value.to_owned();
        Ok(Self { input, name, value })
    }
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
    if let Err(errors) = Policy::of_inputs(&inputs) {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        bail!("{}", all.join("; "));
    }
    Ok(inputs)
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
    let mut documents: Vec<Option<File>> = manifest::parse_yaml(text)?;
    let file = documents.pop().flatten();
    if !documents.is_empty() {
        bail!("it has several documents; write one");
    }
    let defaults = file.and_then(|file| file.defaults).unwrap_or_default();
    let mut inputs = Inputs::default();
    for (name, value) in defaults {
        let (name, input) = known(&name).map_err(anyhow::Error::msg)?;
        let value = words(&value).map_err(|problem| anyhow!("defaults.{name} {problem}"))?;
        let origin = format!("defaults.{name} in {}", path.display());
        inputs.set(input, &value, origin);
    }
    Ok(inputs)
}

/// A value as an annotation would have it; lists may be written as lists.
fn words(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::Null => Err("has no value; write \"\" if you mean none"),
        Value::Bool(value) => Ok(value.to_string()),
        // 1.20 has become 1.2 by now.
        Value::Number(value) if value.is_f64() => Err("is a number with a point; put it in quotes"),
        Value::Number(value) => Ok(value.to_string()),
        Value::String(value) => Ok(value.clone()),
        Value::Array(values) => {
            let words = values.iter().map(|value| match value {
                Value::Array(_) => Err("is a list of lists"),
                value => words(value),
            });
            Ok(words.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        Value::Object(_) => Err("is neither a value nor a list of values"),
    }
}

fn known(name: &str) -> Result<(&'static str, Input), String> {
    NAMES
        .into_iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
            format!("{name:?} is not a default; there are {}", names.join(", "))
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DefaultFlag, defaults};
    use crate::{
        dialect::Dialect,
        inputs::Inputs,
        policy::{OutboundRanges, Policy},
    };

    fn policy(flags: &[&str], file: &str) -> anyhow::Result<Policy> {
        let flags: Vec<DefaultFlag> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        let inputs = defaults(&flags, Some((Path::new("mesh.yaml"), file)))?;
        Policy::of_inputs(&inputs).map_err(|errors| anyhow::anyhow!("{errors:?}"))
    }

    #[test]
    fn flags_win_over_the_file() {
        let policy = policy(
            &["proxyUid=1338", "proxyUid=1339"],
            "defaults:\n  dialect: \"1.8\"\n  proxyUid: 1500\n  excludeOutboundPorts: [53, 3306]\n  includeOutboundIPRanges: \"\"\n",
        )
        .unwrap();
        assert_eq!(policy.proxy_uids, [1339]);
        assert_eq!(policy.dialect, Dialect::V1_8);
        assert_eq!(policy.excluded_outbound_ports, [53, 3306]);
        assert_eq!(policy.outbound, OutboundRanges::Only(vec![]));
    }

    #[test]
    fn nothing_is_a_configuration() {
        let built_in = Policy::of_inputs(&Inputs::default()).unwrap();
        for file in ["", "# nothing\n", "defaults:\n", "defaults: {}\n"] {
            assert_eq!(policy(&[], file).unwrap(), built_in, "{file:?}");
        }
    }

    #[test]
    fn the_example_in_deploy_says_what_is_built_in() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config/mesh.yaml");
        let text = super::read(&path).unwrap();
        let built_in = Policy::of_inputs(&Inputs::default()).unwrap();
        assert_eq!(policy(&[], &text).unwrap(), built_in);
        for (name, _) in super::NAMES {
            assert!(text.contains(&format!("  {name}:")), "{name} is not in it");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (file, expected) in [
            (
                "defaults: {proxyUid: envoy}",
                "defaults.proxyUid in mesh.yaml is \"envoy\"",
            ),
            (
                "defaults: {proxyUID: 1}",
                "\"proxyUID\" is not a default; there are dialect,",
            ),
            ("default: {proxyUid: 1}", "unknown field `default`"),
            (
                "defaults: {proxyUid: {a: 1}}",
                "defaults.proxyUid is neither a value nor a list",
            ),
            ("defaults: [", "not valid YAML"),
            (
                "defaults: {dialect: 1.20}",
                "defaults.dialect is a number with a point",
            ),
            (
                "defaults:\n  includeOutboundIPRanges:\n",
                "defaults.includeOutboundIPRanges has no value",
            ),
            (
                "defaults: {proxyUid: 1}\n---\ndefaults: {proxyUid: 2}\n",
                "several documents",
            ),
        ] {
            let error = format!("{:#}", policy(&[], file).unwrap_err());
            assert!(error.contains(expected), "{file}: {error}");
        }
        assert!("proxyUid".parse::<DefaultFlag>().is_err());
    }
}
