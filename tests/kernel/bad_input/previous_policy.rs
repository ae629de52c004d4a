//! Bad input after a good one: the previous policy stays active.

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, is},
    network::{Lab, manifest},
    protocol::{APP, Dial},
    sidecar,
};
use nix::sys::signal::Signal;

use super::reported;
use crate::fixture::at;

kernel_test!(a_bad_policy_keeps_the_last_good_one);
fn a_bad_policy_keeps_the_last_good_one() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    lab.write_pod("app", &pod, &excluded)?;
    let mut agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let bad = [("traffic.sidecar.istio.io/excludeOutboundPorts", "mysql")];
    lab.write_pod("app", &pod, &bad)?;
    agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "enrolled"
                && reason.contains("mysql")
                && pod["policy"]["excluded_outbound_ports"][0] == 3306
        })
    })?;
    ensure!(
        agent
            .places
            .log()
            .contains("the previous policy stays active")
    );
    // A new agent cannot use it either: the previous policy stays active.
    agent.end(Signal::SIGKILL)?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_pod("test/app", is("enrolled", "mysql"))?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let connected = pod.actor()?.dial(Dial::new(&APP, at("10.77.0.254", 80)))?;
    ensure!(connected.is_ok_and(|connected| connected.accepted_by == 15001));
    // Back to what it was: nothing is wrong any more.
    lab.enroll("app", &pod, &excluded)?;
    Ok(())
}

kernel_test!(files_that_become_unreadable);
/// A file that is half readable, or empty for a moment, takes no pod out.
fn files_that_become_unreadable() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let good = manifest("app", &pod, &[]);
    lab.write_manifest("app", &good)?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    for broken in [
        good.clone()
            .edited(|pod| pod["spec"]["containers"] = 3.into())
            .to_string(),
        String::new(),
        "kind: [".to_owned(),
    ] {
        lab.write_manifest("app", &broken)?;
        reported(&agent.places, "", &["app.yaml", "as they are"]).context(broken)?;
        let pod = agent.places.pod("test/app")?.context("the pod")?;
        ensure!(pod["state"] == "enrolled", "{pod}");
        lab.enroll_manifest("app", &good)?;
    }
    Ok(())
}

kernel_test!(two_pods_in_one_namespace);
fn two_pods_in_one_namespace() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    lab.write_manifest("a", &manifest("first", &pod, &[]))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/first")?;
    lab.write_manifest("b", &manifest("second", &pod, &[]))?;
    agent.places.wait_pod(
        "test/second",
        is("rejected", "already belongs to pod test/first"),
    )?;
    Ok(())
}
