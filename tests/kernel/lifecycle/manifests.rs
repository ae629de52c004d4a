//! Manifests appear, disappear and are wrong.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{agent::PATIENCE, network::manifest, sidecar};

use crate::fixture::{PodFixture, nothing_is_left};

kernel_test!(manifests_take_effect_within_a_second);
fn manifests_take_effect_within_a_second() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    ensure!(
        fixture.taken_by()? == 80,
        "a pod that is not enrolled is untouched"
    );
    let second = Duration::from_secs(1);
    let in_time = |took: Duration, what: &str| {
        ensure!(took < second, "{what} took {took:?}");
        Ok(())
    };
    fixture
        .lab
        .write_manifest("app", &manifest("app", &fixture.pod, &[]))?;
    in_time(fixture.wait_taken_by(15001)?, "adding")?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    fixture
        .lab
        .write_manifest("app", &manifest("app", &fixture.pod, &excluded))?;
    in_time(fixture.wait_taken_by(80)?, "changing")?;
    fixture
        .lab
        .write_manifest("app", &manifest("app", &fixture.pod, &[]))?;
    in_time(fixture.wait_taken_by(15001)?, "changing back")?;
    fixture.lab.remove_manifest("app")?;
    in_time(fixture.wait_taken_by(80)?, "deleting")?;
    nothing_is_left(&fixture.agent.places)
}

kernel_test!(a_recreated_directory_is_followed);
fn a_recreated_directory_is_followed() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let places = &fixture.agent.places;
    fs::remove_dir_all(&places.pods)?;
    let start = Instant::now();
    let is_noticed = || -> Result<bool> {
        let status = places.json(&["status", "-o", "json"])?;
        let problems = status["problems"].to_string();
        Ok(problems.contains("its pods stay as they are"))
    };
    while !is_noticed()? {
        ensure!(start.elapsed() < PATIENCE, "{}", places.log());
        thread::sleep(Duration::from_millis(20));
    }
    let pod = places.pod("test/app")?.context("the pod")?;
    ensure!(
        pod["state"] == "enrolled",
        "a directory that is away says nothing: {pod}"
    );
    fs::create_dir(&places.pods)?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    fixture
        .lab
        .write_manifest("app", &manifest("app", &fixture.pod, &excluded))?;
    places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"][0] == 80)
    })?;
    fixture.lab.remove_manifest("app")?;
    places.wait_pod("test/app", |pod| pod.is_none()).map(drop)
}

kernel_test!(a_wrong_path_keeps_a_live_pod);
fn a_wrong_path_keeps_a_live_pod() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let good = manifest("app", &fixture.pod, &[]);
    let bad = good.replace(&fixture.pod.path(), "/run/netns/typo");
    fixture.lab.write_manifest("app", &bad)?;
    fixture.agent.places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| {
            let reason = pod["reason"].as_str().unwrap_or_default();
            pod["state"] == "enrolled" && reason.contains("/run/netns/typo")
        })
    })?;
    ensure!(fixture.taken_by()? == 15001, "it is still intercepted");
    fixture.lab.write_manifest("app", &good)?;
    fixture.agent.places.wait_enrolled("test/app").map(drop)
}
