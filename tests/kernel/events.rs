//! What happened lately is listed, also by the next agent and without one.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Places},
    node::VIP,
    protocol::PROXY,
    sidecar,
    wait::{eventually, until},
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::{PodFixture, at};

const PORTS: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";

/// Waits for an event of a kind whose text has these words.
fn wait(places: &Places, kind: &str, words: &str) -> Result<Value> {
    eventually(Duration::from_secs(20), || {
        let events = places.json(&["events", "-o", "json"])?;
        let is_it = |event: &&Value| {
            let text = event["text"].as_str().unwrap_or_default();
            event["kind"] == kind && text.contains(words)
        };
        let found = events.as_array().into_iter().flatten().find(is_it);
        found
            .cloned()
            .with_context(|| format!("no {kind} with {words:?} in {events:#}"))
    })
}

kernel_test!(what_happened_to_a_pod_is_listed);
fn what_happened_to_a_pod_is_listed() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let places = fixture.agent.places.clone();
    wait(&places, "agent-started", "version ")?;
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    wait(&places, "enrolled", "")?;
    fixture.enroll(&[(PORTS, "3306")])?;
    wait(
        &places,
        "policy-changed",
        "excluded outbound ports: added 3306",
    )?;
    fixture
        .lab
        .write_pod("app", &fixture.pod, &[(PORTS, "mysql")])?;
    wait(&places, "policy-rejected", "mysql")?;
    fixture.enroll(&[(PORTS, "3306")])?;
    fs::remove_file(places.pins().join("links/connect4"))?;
    wait(&places, "repaired", "connect4")?;

    sidecar.stop()?;
    let client = fixture.pod.actor()?;
    client.flood(at(VIP, 80), 10)?;
    wait(&places, "sidecar-hangs", "10 connections wait")?;
    sidecar.resume()?;
    wait(&places, "sidecar-up", "accepts connections again")?;
    drop(sidecar);
    wait(&places, "sidecar-down", "does not listen")?;
    ensure!(fixture.dial(at(VIP, 80))?.is_err());
    let refused = wait(&places, "refused", "sidecar-refused")?;
    ensure!(refused["pod"] == "test/app", "{refused}");

    let status = places.output(&["status"])?;
    let status = String::from_utf8(status.stdout)?;
    ensure!(status.contains("sidecar-refused: an outbound"), "{status}");
    let of_kind = places.json(&["events", "test/app", "--kind", "refused", "-o", "json"])?;
    ensure!(of_kind.as_array().map(Vec::len) == Some(1), "{of_kind}");
    for nothing in [
        &["events", "test/other", "-o", "json"][..],
        &["events", "-n", "other", "-o", "json"],
        &["events", "--since", "0s", "-o", "json"],
    ] {
        let events = places.json(nothing)?;
        ensure!(events == serde_json::json!([]), "{nothing:?}: {events}");
    }

    // The file is a second behind.
    eventually(Duration::from_secs(10), || {
        let file = fs::read_to_string(places.socket.with_file_name("events.json"))?;
        ensure!(file.contains("sidecar-refused"), "{file}");
        Ok(())
    })?;
    fixture.agent.end(Signal::SIGKILL)?;
    wait(&places, "refused", "sidecar-refused")?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    wait(&places, "took-over", "1 pods of an earlier agent")?;
    wait(&places, "refused", "sidecar-refused")?;
    Ok(())
}

kernel_test!(a_restart_between_two_looks_is_listed);
/// The sidecar of Linkerd listens on loopback.
fn a_restart_between_two_looks_is_listed() -> Result<()> {
    let fixture = PodFixture::new()?;
    let places = fixture.agent.places.clone();
    fixture.enroll(&[])?;
    for address in ["0.0.0.0", "127.0.0.1"] {
        let start = || -> Result<Actor> {
            let sidecar = fixture.pod.actor()?;
            sidecar.listen(&PROXY, at(address, 15001))?;
            sidecar.listen(&PROXY, at("0.0.0.0", 15006))?;
            Ok(sidecar)
        };
        let listed = || -> Result<u64> {
            let events =
                places.json(&["events", "test/app", "--kind", "sidecar-up", "-o", "json"])?;
            let events = events.as_array().into_iter().flatten();
            let restarts =
                events.filter(|it| it["text"].as_str().unwrap_or("").contains("restarted"));
            Ok(restarts.filter_map(|it| it["count"].as_u64()).sum())
        };
        let before = listed()?;
        let mut sidecar = start()?;
        // A look may fall between the two; then it is an end and a start.
        let mut is_listed = false;
        for _ in 0..4 {
            until(Duration::from_secs(10), "it is up", || {
                let pod = places.pod("test/app")?.context("the pod")?;
                Ok(pod["sidecar"]["state"] == "up")
            })?;
            // It was up at a look of the agent's, which are two seconds apart.
            thread::sleep(Duration::from_secs(3));
            drop(sidecar);
            sidecar = start()?;
            thread::sleep(Duration::from_secs(3));
            is_listed = listed()? > before;
            if is_listed {
                break;
            }
        }
        ensure!(is_listed, "{:#}", places.json(&["events", "-o", "json"])?);
        drop(sidecar);
        wait(&places, "sidecar-down", "does not listen")?;
    }
    Ok(())
}

kernel_test!(a_foreign_file_is_no_list_of_events);
fn a_foreign_file_is_no_list_of_events() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let places = fixture.agent.places.clone();
    fixture.agent.end(Signal::SIGKILL)?;
    let file = places.socket.with_file_name("events.json");
    fs::write(&file, "\0not ours")?;
    let output = places.output(&["events"])?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{output:?}");
    ensure!(errors.contains("is no list of events"), "{errors}");
    // A pipe without a writer.
    let policies = places.socket.with_file_name("last-policies.json");
    let _ = fs::remove_file(&policies);
    nix::unistd::mkfifo(&policies, nix::sys::stat::Mode::S_IRWXU)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    wait(&places, "agent-started", "")?;
    let log = places.log();
    ensure!(log.contains("the list of events begins anew"), "{log}");
    Ok(())
}
