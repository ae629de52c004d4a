//! Manifests appear, disappear and are wrong.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{WAIT_TIMEOUT, is},
    network::manifest,
    product::NETNS_ANNOTATION,
    sidecar,
    wait::eventually,
};

use crate::fixture::{PodFixture, nothing_remains};

kernel_test!(manifests_take_effect_within_a_second);
fn manifests_take_effect_within_a_second() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    ensure!(
        fixture.accepted_by()? == 80,
        "a pod that is not enrolled is untouched"
    );
    let second = Duration::from_secs(1);
    let in_time = |took: Duration, what: &str| {
        ensure!(took < second, "{what} took {took:?}");
        Ok(())
    };
    fixture.lab.write_pod("app", &fixture.pod, &[])?;
    in_time(fixture.wait_accepted_by(15001)?, "adding")?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    fixture.lab.write_pod("app", &fixture.pod, &excluded)?;
    in_time(fixture.wait_accepted_by(80)?, "changing")?;
    fixture.lab.write_pod("app", &fixture.pod, &[])?;
    in_time(fixture.wait_accepted_by(15001)?, "changing back")?;
    fixture.lab.remove_manifest("app")?;
    in_time(fixture.wait_accepted_by(80)?, "deleting")?;
    nothing_remains(&fixture.agent.places)
}

kernel_test!(large_manifests_delay_no_small_one);
/// Thirty large files change at once; a pod in a new small file is enrolled while they are read.
fn large_manifests_delay_no_small_one() -> Result<()> {
    const FILES: usize = 30;
    const BYTES: usize = 1_800_000;
    /// The dev profile's build takes two seconds for a large file.
    const LONGEST: Duration = Duration::from_secs(120);
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let entry = "    - {name: VARIABLE, value: some value of it}\n";
    let env = entry.repeat(BYTES / entry.len());
    let large = |number| {
        format!(
            "kind: Pod\nmetadata: {{name: large-{number}}}\nspec:\n  containers:\n  - name: app\n    env:\n{env}"
        )
    };
    let places = &fixture.agent.places;
    for number in 0..FILES {
        let name = format!("large-{number:02}");
        fixture.lab.write_manifest(&name, &large(number))?;
    }
    // Let the agent begin with them.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    fixture.lab.write_pod("app", &fixture.pod, &[])?;
    let known = eventually(LONGEST, || {
        let pods = places.json(&["pods", "-o", "json"])?;
        let pods = pods.as_array().map(Vec::as_slice).unwrap_or_default();
        let is_known = pods.iter().any(|pod| pod["name"] == "app");
        ensure!(is_known, "{}", places.log());
        Ok(pods.len() - 1)
    })?;
    println!(
        "{FILES} files of {BYTES} bytes: a pod in a small one is known after {:.2?}, with {known} of theirs",
        start.elapsed()
    );
    ensure!(known < FILES / 2, "only after {known} large files");
    Ok(())
}

kernel_test!(a_recreated_directory_is_followed);
fn a_recreated_directory_is_followed() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let places = &fixture.agent.places;
    fs::remove_dir_all(&places.pods)?;
    let is_noticed =
        || -> Result<bool> { Ok(places.problems()?.contains("its pods stay as they are")) };
    eventually(WAIT_TIMEOUT, || {
        ensure!(is_noticed()?, "{}", places.log());
        Ok(())
    })?;
    let pod = places.pod("test/app")?.context("the pod")?;
    ensure!(
        pod["state"] == "enrolled",
        "a directory that is away says nothing: {pod}"
    );
    fs::create_dir(&places.pods)?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "80")];
    fixture.lab.write_pod("app", &fixture.pod, &excluded)?;
    places.wait_pod("test/app", |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"][0] == 80)
    })?;
    fixture.lab.release("app").map(drop)
}

kernel_test!(a_wrong_path_keeps_a_live_pod);
fn a_wrong_path_keeps_a_live_pod() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let good = manifest("app", &fixture.pod, &[]);
    let bad = good
        .clone()
        .annotated(&[(NETNS_ANNOTATION, "/run/netns/typo")]);
    fixture.lab.write_manifest("app", &bad)?;
    fixture
        .agent
        .places
        .wait_pod("test/app", is("enrolled", "/run/netns/typo"))?;
    ensure!(fixture.accepted_by()? == 15001, "it is still intercepted");
    fixture.lab.enroll_manifest("app", &good)
}
