//! Pods that istio-init prepared with iptables rules.

use std::fs;

use anyhow::{Result, ensure};
use lab::{
    command::run_words,
    injected::injected,
    node::VIP,
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};

use super::{accepted_by, labeled};
use crate::fixture::at;

kernel_test!(pods_with_iptables_rules_are_adopted);
fn pods_with_iptables_rules_are_adopted() -> Result<()> {
    let (node, outside, pod) = labeled()?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    // istio-init has been here.
    let object = injected("web", &node.lab.uid(1));
    let manifest = node.lab.dir().join("web.json");
    fs::write(&manifest, object.to_string())?;
    let rules = node.places().output(&[
        "rules",
        "--manifest",
        &manifest.to_string_lossy(),
        "--format",
        "iptables",
    ])?;
    let file = node.lab.dir().join("rules");
    fs::write(&file, rules.stdout)?;
    run_words(&[
        "ip",
        "netns",
        "exec",
        &pod.netns,
        "iptables-restore",
        &file.to_string_lossy(),
    ])?;
    let client = pod.actor()?;
    ensure!(accepted_by(&client)? == 15001, "the rules work");
    node.api.apply(object)?;
    node.wait_enrollment("shop/web", true)?;
    let connected = client.connect(&APP, at(VIP, 80))?;
    ensure!(
        connected.accepted_by == 15001
            && connected.server.original_v4 == Ok(at(VIP, 80))
            && connected.server.peer.ip() == pod.v4
            && connected.client.peer == at(VIP, 80),
        "{connected:?}"
    );
    for (to, by) in [
        ("10.77.0.2:80", 15006),
        ("10.77.0.2:15021", 15021),
        ("10.77.0.2:9", 15006),
    ] {
        let to = to.parse()?;
        let arrived = outside.connect(&ROOT, to)?;
        ensure!(arrived.accepted_by == by, "to {to}: {arrived:?}");
        ensure!(arrived.server.original_v4 == Ok(to), "to {to}: {arrived:?}");
    }
    let proxy = client.dial(Dial::new(&PROXY, at(VIP, 80)))?;
    ensure!(proxy.is_ok_and(|proxy| proxy.accepted_by == 80));
    let home = client.connect(&PROXY, at("10.77.0.2", 80))?;
    ensure!(
        home.accepted_by == 15006 && home.server.original_v4 == Ok(at("10.77.0.2", 80)),
        "{home:?}"
    );
    Ok(())
}
