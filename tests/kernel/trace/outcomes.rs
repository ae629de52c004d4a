//! Connections are counted by what became of them: one that is redirected to a sidecar that is not there was refused.

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run_words,
    injected::with_istio_init,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::json;

use super::{app, printed};
use crate::fixture::{self, PodFixture, at};

const ECONNREFUSED: i32 = 111;
const ETIMEDOUT: i32 = 110;
/// What SO_SNDTIMEO makes of a connect that takes too long.
const EINPROGRESS: i32 = 115;

/// Enrolls the pod for both families.
fn enroll(fixture: &PodFixture) -> Result<()> {
    let manifest = with_istio_init(&fixture.pod, &[], &[("ISTIO_DUAL_STACK", "true")]);
    fixture.lab.enroll_manifest("app", &manifest)
}

kernel_test!(a_missing_sidecar_is_a_refusal);
fn a_missing_sidecar_is_a_refusal() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    fixture.lab.add_outside(fixture::VIP[1])?;
    enroll(&fixture)?;
    for vip in fixture::VIP {
        let answer = fixture.dial(at(vip, 80))?.err();
        ensure!(answer == Some(ECONNREFUSED), "{vip}: {answer:?}");
    }
    let pod = app(&fixture)?;
    ensure!(pod["connections"]["refused"] == 2, "{pod}");
    ensure!(pod["connections"]["outbound_redirected"] == 0, "{pod}");
    ensure!(pod["outbound_listener"] == false, "{pod}");
    let refusals = &pod["refusals"][0];
    ensure!(refusals["reason"] == "sidecar-refused", "{pod}");
    ensure!(refusals["count"] == 2, "{pod}");
    let last = &refusals["last"];
    ensure!(last["destination"] == "[fd99::31]:80", "{pod}");
    ensure!(
        last["port"] == 15001 && last["errno"] == ECONNREFUSED,
        "{pod}"
    );
    ensure!(last["verdict"] == "failed", "{pod}");

    let lab = &fixture.lab;
    let status = printed(lab, &["status"])?;
    ensure!(
        status.contains("no sidecar listens on its outbound port"),
        "{status}"
    );
    let why = printed(lab, &["why", "test/app"])?;
    ensure!(why.contains("2 connections refused"), "{why}");
    ensure!(why.contains("sidecar-refused: 2 times"), "{why}");
    ensure!(why.contains("[fd99::31]:80, redirected to 15001"), "{why}");
    let explain = [
        "explain", "test/app", "outbound", "--uid", "1000", "--gid", "1000",
    ];
    let explain = [&explain[..], &["--dst", "10.109.118.31:80", "-o", "json"]].concat();
    ensure!(lab.places().json(&explain)?["sidecar_listens"] == false);

    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    for vip in fixture::VIP {
        let answer = fixture.dial(at(vip, 80))?;
        ensure!(answer.is_ok(), "{vip}: {answer:?}");
    }
    let pod = app(&fixture)?;
    ensure!(pod["connections"]["refused"] == 2, "{pod}");
    ensure!(pod["connections"]["outbound_redirected"] == 2, "{pod}");
    ensure!(
        pod["outbound_listener"] == true && pod["listener"] == true,
        "{pod}"
    );
    ensure!(lab.places().json(&explain)?["sidecar_listens"] == true);
    let status = printed(lab, &["status"])?;
    ensure!(!status.contains("no sidecar listens"), "{status}");

    // The same without an agent.
    fixture.agent.end(Signal::SIGKILL)?;
    let why = printed(&fixture.lab, &["why", "test/app", "-o", "json"])?;
    let parsed: serde_json::Value = serde_json::from_str(&why)?;
    let reason = &parsed["refusals"][0];
    ensure!(
        parsed["refused"] == 2 && reason["count"] == 2 && reason["cure"].is_string(),
        "{why}"
    );
    Ok(())
}

kernel_test!(a_silent_sidecar_differs_from_one_that_the_application_did_not_wait_for);
fn a_silent_sidecar_differs_from_one_that_the_application_did_not_wait_for() -> Result<()> {
    let fixture = PodFixture::new()?;
    enroll(&fixture)?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let inside = |command: &str| -> Result<String> {
        let netns = format!("--net={}", fixture.pod.path());
        run_words(&["nsenter", &netns, "sh", "-c", command])
    };
    inside("echo 1 > /proc/sys/net/ipv4/tcp_syn_retries")?;
    inside("iptables -A INPUT -i lo -p tcp --dport 15001 -j DROP")?;
    let mut hasty = Dial::new(&APP, at(VIP, 80));
    hasty.patience_ms = 300;
    let answer = fixture.client.dial(hasty)?.err();
    ensure!(answer == Some(EINPROGRESS), "it gives up: {answer:?}");
    let connections = app(&fixture)?["connections"].clone();
    ensure!(connections["given_up"] == 1, "{connections}");
    ensure!(connections["refused"] == 0, "{connections}");

    let mut patient = Dial::new(&APP, at(VIP, 80));
    patient.patience_ms = 10_000;
    let answer = fixture.client.dial(patient)?.err();
    ensure!(answer == Some(ETIMEDOUT), "{answer:?}");
    let pod = app(&fixture)?;
    ensure!(pod["connections"]["refused"] == 1, "{pod}");
    ensure!(pod["connections"]["outbound_redirected"] == 0, "{pod}");
    ensure!(pod["refusals"][0]["reason"] == "sidecar-silent", "{pod}");
    Ok(())
}

kernel_test!(refusals_without_a_sidecar_say_who_and_why);
fn refusals_without_a_sidecar_say_who_and_why() -> Result<()> {
    let fixture = PodFixture::new()?;
    enroll(&fixture)?;
    let answer = fixture.dial(at("224.0.0.9", 80))?.err();
    ensure!(answer == Some(101), "{answer:?}");
    let answer = fixture
        .outside
        .dial(Dial::new(&ROOT, at(fixture::POD[0], 80)))?;
    ensure!(answer.is_err(), "{answer:?}");
    let pod = app(&fixture)?;
    ensure!(pod["connections"]["refused"] == 2, "{pod}");
    let refusals = pod["refusals"].as_array().context("a list")?;
    let of = |reason: &str| refusals.iter().find(|row| row["reason"] == reason);
    let outbound = &of("no-route").context("no-route")?["last"];
    ensure!(outbound["destination"] == "224.0.0.9:80", "{pod}");
    ensure!(outbound["process"]["uid"] == json!(APP.uid), "{pod}");
    ensure!(outbound["process"]["pid"].as_u64() > Some(1), "{pod}");
    let inbound = &of("no-listener").context("no-listener")?["last"];
    ensure!(
        inbound["direction"] == "inbound" && inbound["process"].is_null(),
        "{pod}"
    );
    ensure!(inbound["destination"] == "10.77.0.2:80", "{pod}");
    Ok(())
}
