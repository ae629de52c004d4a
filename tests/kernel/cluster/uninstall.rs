//! An upgrade keeps interception, an uninstall removes it.

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    apiserver::ApiServer,
    injected::{injected, namespace},
    network::Lab,
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::json;

use super::wait_for;

kernel_test!(a_deleted_daemonset_leaves_nothing);
fn a_deleted_daemonset_leaves_nothing() -> Result<()> {
    let mut lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    let daemonset = json!({
        "kind": "DaemonSet", "apiVersion": "apps/v1",
        "metadata": {"name": "sidetrack", "namespace": "sidetrack-system", "uid": "uid-ds"},
    });
    api.apply(daemonset)?;
    let pod = lab.pod("app", 2)?.under_kubelet(&lab, &lab.uid(1))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    api.apply(injected("web", &lab.uid(1)))?;
    let extra = Extra {
        api: Some(&api),
        arguments: &["--daemonset", "sidetrack-system/sidetrack"],
        ..Extra::default()
    };
    let pins = lab.places().bpffs.join("sidetrack");
    // An upgrade: the pod of the DaemonSet goes, the DaemonSet stays.
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    agent.end(Signal::SIGTERM)?;
    ensure!(pins.exists(), "an upgrade leaves interception in place");
    let mut agent = Agent::start_with(lab.places(), &extra)?;
    lab.places().wait_enrolled("shop/web")?;
    api.delete("DaemonSet", "sidetrack-system", "sidetrack")?;
    wait_for(|| Ok(lab.places().log().contains("DaemonSet is deleted")))?;
    agent.end(Signal::SIGTERM)?;
    ensure!(!pins.exists(), "{}", lab.places().log());
    Ok(())
}
