//! A sidecar that listens and does not accept is distinguished from one that works and from one that is not there.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra, Places},
    command::run,
    injected::with_istio_init,
    network::Lab,
    node::VIP,
    sidecar,
    wait::until,
};
use nix::sys::signal::Signal;

use super::{app, printed};
use crate::fixture::{self, PodFixture, at};

/// Longer than a connection has to wait for a sidecar that hangs, and two looks.
const LOOKED: Duration = Duration::from_secs(20);

/// Waits until the pod's sidecar is in a state; how long that took.
fn wait(places: &Places, state: &str) -> Result<()> {
    let is_so = || {
        let pod = places.pod("test/app")?.context("the pod")?;
        Ok(pod["sidecar"]["state"] == state)
    };
    let took = until(LOOKED, state, is_so)?;
    eprintln!("{state}: after {took:?}");
    Ok(())
}

fn check(fixture: &PodFixture) -> Result<Option<i32>> {
    let output = fixture.lab.places().output(&["status", "--check"])?;
    Ok(output.status.code())
}

kernel_test!(a_stopped_sidecar_hangs);
/// 129 connections fit into the queue of its socket, the SYNs of all others are ignored. Connections to IPv4 have
/// targets of their own, and no row in a map.
fn a_stopped_sidecar_hangs() -> Result<()> {
    const V4: usize = 400;
    const V6: usize = 150;
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(fixture::VIP[1])?;
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    let manifest = with_istio_init(&fixture.pod, &[], &[("ISTIO_DUAL_STACK", "true")]);
    fixture.lab.write_manifest("app", &manifest)?;
    let places = fixture.agent.places.clone();
    places.wait_enrolled("test/app")?;
    wait(&places, "up")?;
    ensure!(check(&fixture)? == Some(0), "a sidecar that works");

    sidecar.stop()?;
    let client = fixture.pod.actor()?;
    for (vip, count) in [(VIP, V4), (fixture::VIP[1], V6)] {
        let flooded = client.flood(at(vip, 80), count)?;
        ensure!(flooded.pending == count, "{vip}: {flooded:?}");
    }
    wait(&places, "hangs")?;
    let pod = app(&fixture)?;
    ensure!(pod["sidecar"]["waiting"] == V4 + V6, "{pod}");
    ensure!(pod["sidecar"]["seconds"].as_u64() >= Some(3), "{pod}");
    let waits = format!("{} connections wait", V4 + V6);
    let lab = &fixture.lab;
    for words in [
        &["pods"][..],
        &["status"],
        &["why", "test/app"],
        &["top", "--once", "--interval", "100ms", "-o", "wide"],
    ] {
        let text = printed(lab, words)?;
        let expected = match words[0] {
            "top" => (V4 + V6).to_string(),
            _ => waits.clone(),
        };
        ensure!(text.contains(&expected), "{words:?}: {text}");
        ensure!(
            words[0] == "why" || text.contains("hang"),
            "{words:?}: {text}"
        );
    }
    ensure!(check(&fixture)? == Some(1), "a sidecar that hangs");

    // Those in the queue are accepted by the kernel, whatever becomes of them.
    drop(client);
    let given_up = || Ok(app(&fixture)?["connections"]["given_up"].as_u64() >= Some(200));
    fixture.wait("connections were not given up", given_up)?;
    let why = printed(lab, &["why", "test/app"])?;
    ensure!(why.contains("given up: closed by the application"), "{why}");

    sidecar.resume()?;
    wait(&places, "up")?;
    ensure!(check(&fixture)? == Some(0), "a sidecar that works again");
    drop(sidecar);
    wait(&places, "down")?;
    ensure!(check(&fixture)? == Some(1), "a sidecar that is down");
    Ok(())
}

kernel_test!(a_few_connections_that_are_not_accepted_are_a_sidecar_that_hangs);
/// Its queue has room for more, so that no client notices anything but silence.
fn a_few_connections_that_are_not_accepted_are_a_sidecar_that_hangs() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    sidecar.stop()?;
    // Inbound, for a change.
    fixture.outside.flood(at(fixture::POD[0], 80), 2)?;
    let places = fixture.agent.places.clone();
    wait(&places, "hangs")?;
    let pod = app(&fixture)?;
    ensure!(pod["sidecar"]["waiting"] == 2, "{pod}");
    // Without an agent nothing checks whether it accepts.
    fixture.agent.end(Signal::SIGKILL)?;
    let pod = places.pod("test/app")?.context("the pod")?;
    ensure!(pod["sidecar"]["state"] == "listens", "{pod}");
    Ok(())
}

kernel_test!(sidecars_that_hang_are_in_the_metrics);
fn sidecars_that_hang_are_in_the_metrics() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let sidecar = sidecar::start(&pod, &[])?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--metrics-addr", &address, "--metrics-per-pod", "1"]),
    )?;
    lab.write_pod("app", &pod, &[])?;
    agent.places.wait_enrolled("test/app")?;
    let has = |line: &str| {
        let page = run(&format!("curl -sf http://{address}/metrics"))?;
        Ok(page.lines().any(|it| it == line))
    };
    let none = "sidetrack_hanging_sidecars 0";
    until(LOOKED, none, || has(none))?;
    sidecar.stop()?;
    let client = pod.actor()?;
    client.flood(at(VIP, 80), 10)?;
    for line in [
        "sidetrack_hanging_sidecars 1",
        "sidetrack_waiting_connections 10",
        "sidetrack_pod_waiting_connections{namespace=\"test\",pod=\"app\"} 10",
    ] {
        let took = until(LOOKED, line, || has(line))?;
        eprintln!("{line}: after {took:?}");
    }
    sidecar.resume()?;
    until(LOOKED, none, || has(none)).map(drop)
}
