//! Defaults of the mesh: flags, the configuration file, and what is wrong in them.

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
fn an_empty_file_configures_nothing() {
    let built_in = Policy::of_inputs(&Inputs::default()).unwrap();
    for file in ["", "# nothing\n", "defaults:\n", "defaults: {}\n"] {
        assert_eq!(policy(&[], file).unwrap(), built_in, "{file:?}");
    }
}

#[test]
fn the_example_in_deploy_has_the_built_in_values() {
    let path = Path::new("../../deploy/config/mesh.yaml");
    let text = super::read(path).unwrap();
    let built_in = Policy::of_inputs(&Inputs::default()).unwrap();
    assert_eq!(policy(&[], &text).unwrap(), built_in);
    for (name, _) in super::NAMES {
        assert!(text.contains(&format!("  {name}:")), "{name} is not in it");
    }
}

#[test]
fn errors_name_the_default_and_the_file() {
    for (file, expected) in [
        (
            "defaults: {proxyUid: envoy}",
            "defaults.proxyUid in mesh.yaml is \"envoy\"",
        ),
        (
            "defaults: {proxyUID: 1}",
            "\"proxyUID\" is not a default; the defaults are dialect,",
        ),
        ("default: {proxyUid: 1}", "not as expected: "),
        ("default: {proxyUid: 1}", "unknown field `default`"),
        ("defaults: [1]", "not as expected: "),
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

#[test]
fn a_flag_says_at_once_that_its_value_cannot_be_used() {
    for (flag, problem) in [
        ("excludeOutboundPorts=mysql", "\"mysql\" is not a port"),
        ("outboundPort=0", "is not a port"),
        ("dialect=2", "is not a dialect"),
        ("proxyUid=envoy", "is not a numeric"),
    ] {
        let error = flag.parse::<DefaultFlag>().unwrap_err();
        assert!(error.contains(problem), "{flag}: {error}");
    }
}

#[test]
fn a_sidecar_has_two_ports() {
    for (flags, is_fine) in [
        (&["outboundPort=15006"][..], false),
        (&["inboundPort=15001"], false),
        (&["outboundPort=16000", "inboundPort=16000"], false),
        (&["outboundPort=15006", "inboundPort=15001"], true),
        // Old rules have one port for both directions.
        (&["dialect=1.1", "outboundPort=16000"], true),
        (
            &["dialect=1.1", "outboundPort=16000", "inboundPort=16000"],
            true,
        ),
    ] {
        let flags: Vec<DefaultFlag> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        assert_eq!(super::check(&flags).is_ok(), is_fine, "{flags:?}");
        let file = Some((Path::new("mesh.yaml"), "defaults: {}"));
        assert_eq!(defaults(&flags, file).is_ok(), is_fine, "{flags:?}");
    }
    let error = super::check(&["outboundPort=15006".parse().unwrap()]).unwrap_err();
    assert!(error.contains("are both 15006"), "{error}");
}
