//! The agent stops and starts again while pods run.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, Places},
    command::run,
    network::Lab,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::redirected;
use crate::fixture::{PodFixture, at};

kernel_test!(sigterm_leaves_interception);
fn sigterm_leaves_interception() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let took = fixture.agent.end(Signal::SIGTERM)?;
    ensure!(took < Duration::from_secs(1), "it took {took:?}");
    let PodFixture {
        client,
        outside,
        lab,
        ..
    } = &fixture;
    ensure!(!lab.places().socket.exists(), "the socket is gone");
    redirected(client)?;
    let inbound = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(inbound.is_ok_and(|inbound| inbound.accepted_by == 15006));
    // Commands still show which pods are intercepted.
    let pods = lab.places().json(&["pods", "-o", "json"])?;
    ensure!(
        pods[0]["name"] == "app" && pods[0]["state"] == "enrolled",
        "{pods}"
    );
    Ok(())
}

kernel_test!(kill_and_restart_under_traffic);
fn kill_and_restart_under_traffic() -> Result<()> {
    const ROUNDS: usize = 3;
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok());
    let row = |places: &Places| -> Result<Value> {
        let mut pod = places.pod("test/app")?.context("the pod")?;
        // Counters increase, and whether the sidecar accepts is known a second later; everything else is the same.
        pod["connections"].take();
        pod["sidecar"].take();
        pod["policy_id"].take();
        Ok(pod)
    };
    for _ in 0..ROUNDS {
        let before = row(&fixture.agent.places)?;
        let client = &fixture.client;
        let back = AtomicBool::new(false);
        let dialed = thread::scope(|scope| {
            let dialing = scope.spawn(|| {
                let mut dialed = 0;
                while !back.load(Ordering::Relaxed) {
                    redirected(client).context("while the agent was away")?;
                    dialed += 1;
                    // Leaves the processor to the agent where there is only one.
                    thread::sleep(Duration::from_millis(2));
                }
                anyhow::Ok(dialed)
            });
            let restarted = fixture.agent.end(Signal::SIGKILL).and_then(|_| {
                thread::sleep(Duration::from_millis(100));
                Agent::start(&fixture.agent.places)
            });
            back.store(true, Ordering::Relaxed);
            let dialed = dialing
                .join()
                .map_err(|_| anyhow!("the dialing thread panicked"))??;
            fixture.agent = restarted?;
            anyhow::Ok(dialed)
        })?;
        ensure!(dialed > 10, "only {dialed} connections meanwhile");
        fixture.agent.places.wait_enrolled("test/app")?;
        let after = row(&fixture.agent.places)?;
        ensure!(before == after, "{before} became {after}");
        ensure!(
            fixture.client.echo()? == 1,
            "the established connection continues"
        );
    }
    let listeners = fixture.agent.places.map("LISTENERS")?;
    // For both ports the IPv4 listener, and the IPv6 one, which takes IPv6 only: no slot more than before.
    ensure!(
        listeners.len() == 4,
        "each listener is adopted once: {listeners:?}"
    );
    Ok(())
}

kernel_test!(pods_that_vanished_meanwhile_are_removed);
fn pods_that_vanished_meanwhile_are_removed() -> Result<()> {
    let mut lab = Lab::new()?;
    for (name, number) in [("stays", 2), ("unlisted", 3), ("dead", 4)] {
        let pod = lab.pod(name, number)?;
        lab.write_pod(name, &pod, &[])?;
    }
    let mut agent = Agent::start(lab.places())?;
    for name in ["stays", "unlisted", "dead"] {
        agent.places.wait_enrolled(&format!("test/{name}"))?;
    }
    agent.end(Signal::SIGKILL)?;
    lab.remove_manifest("unlisted")?;
    lab.remove_manifest("dead")?;
    run(&format!(
        "ip netns del {}",
        lab.outside().netns.replace("-out", "-dead")
    ))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/stays")?;
    let rows = agent.places.map("POD_BY_NETNS")?;
    ensure!(rows.len() == 1, "{rows:?}");
    let cookie = agent.places.pod("test/stays")?.context("the pod")?["netns"]["cookie"].clone();
    for row in agent.places.map("ROUTE_BY_POD")? {
        ensure!(
            row["formatted"]["key"]["netns"] == cookie,
            "a stale route: {row}"
        );
    }
    agent.places.wait_rows("POLICY_BY_ID", 1)?;
    let links = fs::read_dir(agent.places.pins().join("pods"))?.count();
    ensure!(links == 1, "{links} links");
    Ok(())
}
