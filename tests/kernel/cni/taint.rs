//! The node's taint goes when the agent and the plugin are ready.

use std::{fs, thread, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra, NODE},
    apiserver::ApiServer,
    deploy::{USED, USED_FOR_TAINT},
    network::Lab,
    runtime::Runtime,
    wait::eventually,
};
use serde_json::json;

kernel_test!(the_taint_goes);
/// The taint stays until the agent is ready and the plugin is in place.
fn the_taint_goes() -> Result<()> {
    let lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    let runtime = Runtime::new(&lab)?;
    let other = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    let ours = json!({"key": "sidetrack.dev/not-ready", "effect": "NoSchedule"});
    api.apply(json!({
        "kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE, "uid": "n"},
        "spec": {"taints": [ours, other]},
    }))?;
    let aside = lab.dir().join("aside");
    fs::rename(runtime.list(), &aside)?;
    let (bin, conf) = (runtime.bin(), runtime.conf());
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            api: Some(&api),
            arguments: &[
                "--remove-taint",
                "--cni-bin-dir",
                &bin,
                "--cni-conf-dir",
                &conf,
            ],
            ..Extra::default()
        },
    )?;
    let taints = || Ok::<_, anyhow::Error>(api.get("Node", "", NODE)?["spec"]["taints"].clone());
    thread::sleep(Duration::from_secs(1));
    ensure!(
        taints()? == json!([ours, other]),
        "not before the plugin is there"
    );
    fs::rename(&aside, runtime.list())?;
    eventually(Duration::from_secs(5), || {
        ensure!(
            taints()? == json!([other]),
            "{}\n{}",
            taints()?,
            lab.places().log()
        );
        Ok(())
    })?;
    for request in api.requests() {
        let request = (request.verb, request.group, request.resource);
        let allowed = USED.contains(&request) || USED_FOR_TAINT.contains(&request);
        ensure!(allowed, "RBAC does not allow {request:?}");
    }
    drop(agent);
    Ok(())
}
