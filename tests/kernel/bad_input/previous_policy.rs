//! Bad input after a good one: the previous policy stays active.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Places, is},
    network::{Lab, manifest},
    protocol::{APP, Dial},
    sidecar,
    wait::until,
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
            pod["state"] == "outdated"
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
    previous_policy_is_named(&agent.places)?;
    let status = agent.places.output(&["status", "--check"])?;
    let text = String::from_utf8_lossy(&status.stdout);
    ensure!(
        status.status.code() == Some(1)
            && text.contains("0 enrolled, 1 outdated,")
            && text.contains("sidecars  0 up, 1 down, 0 hang")
            && text.contains("the previous policy stays active"),
        "{text}"
    );
    let kept = agent.places.socket.with_file_name("last-policies.json");
    until(
        Duration::from_secs(10),
        "the agent keeps the policy",
        || Ok(fs::read_to_string(&kept).is_ok_and(|text| text.contains("3306"))),
    )?;
    // A new agent cannot use it either: the previous policy stays active.
    agent.end(Signal::SIGKILL)?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_pod("test/app", is("outdated", "mysql"))?;
    previous_policy_is_named(&agent.places)?;
    // It is intercepted, and what its rows and counters say is shown.
    let dial = Dial::new(&APP, at("10.77.0.254", 80));
    let actor = pod.actor()?;
    ensure!(actor.dial(dial.clone())? == Err(libc::ECONNREFUSED));
    let why = agent.places.output(&["why", "app"])?;
    let text = String::from_utf8_lossy(&why.stdout);
    ensure!(text.contains("1 connection refused"), "{why:?}");
    let known = agent.places.pod("test/app")?.context("the pod")?;
    ensure!(
        known["outbound_listener"] == false && known["connections"]["refused"] == 1,
        "{known}"
    );
    let open = agent.places.output(&["connections", "app"])?;
    ensure!(open.status.success(), "{open:?}");
    let _sidecar = sidecar::start(&pod, &[])?;
    let connected = actor.dial(dial)?;
    ensure!(connected.is_ok_and(|connected| connected.accepted_by == 15001));
    // Back to what it was: nothing is wrong any more.
    lab.enroll("app", &pod, &excluded)?;
    Ok(())
}

/// Every command that shows the previous policy says that a newer one was rejected.
fn previous_policy_is_named(places: &Places) -> Result<()> {
    let explain = ["explain", "app", "outbound", "--dst", "10.0.0.1:3306"];
    for words in [&["rules", "app"][..], &explain] {
        let output = places.output(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && said.contains("rejected") && said.contains("mysql"),
            "{words:?}: {output:?}"
        );
    }
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
