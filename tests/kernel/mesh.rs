//! Settings that hold for all pods.

use std::fs;

use anyhow::{Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra, is},
    network::{BESIDE, Lab, manifest},
    protocol::{APP, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::fixture::at;

/// What a pod without istio-init has where nothing is said: see docs/semantics.md.
const OF_ISTIO_CNI: [u16; 1] = [15020];

fn excluded(pod: Option<&Value>) -> Value {
    pod.map(|pod| pod["policy"]["excluded_outbound_ports"].clone())
        .unwrap_or_default()
}

kernel_test!(defaults_are_followed);
fn defaults_are_followed() -> Result<()> {
    let mut lab = Lab::new()?;
    let config = lab.dir().join("mesh.yaml");
    fs::write(&config, "defaults: {excludeOutboundPorts: [3306, 53]}\n")?;
    let path = config.to_string_lossy();
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--config", &path, "--default", "dialect=1.8"]),
    )?;
    let places = &agent.places;
    let plain = lab.pod("plain", 2)?;
    let text = manifest("plain", &plain, &[]).edited(|pod| {
        pod["spec"]["containers"][1]["image"] = "docker.io/istio/proxyv2:dev".into();
    });
    lab.write_manifest("plain", &text)?;
    let annotation = ("traffic.sidecar.istio.io/excludeOutboundPorts", "9999");
    let own = lab.pod("own", 3)?;
    lab.write_pod("own", &own, &[annotation])?;
    for name in ["test/plain", "test/own"] {
        places.wait_enrolled(name)?;
    }
    let row = places.pod("test/plain")?;
    ensure!(
        excluded(row.as_ref()) == serde_json::json!([3306, 53]),
        "{row:?}"
    );
    ensure!(row.is_some_and(|row| row["policy"]["dialect"] == "1.8"));
    let row = places.pod("test/own")?;
    ensure!(
        excluded(row.as_ref()) == serde_json::json!([9999]),
        "{row:?}"
    );
    ensure!(row.is_some_and(|row| row["policy"]["dialect"] == "current"));

    // A change takes effect; one that cannot be used does not, and is shown.
    fs::write(&config, "defaults: {excludeOutboundPorts: 80}\n")?;
    places.wait_pod("test/plain", |pod| excluded(pod) == serde_json::json!([80]))?;
    fs::write(&config, "defaults: {excludeOutboundPorts: http}\n")?;
    let problem = |wanted: &str| -> Result<()> {
        for _ in 0..100 {
            let problems = places.problems()?;
            if wanted.is_empty() && problems == "[]"
                || !wanted.is_empty() && problems.contains(wanted)
            {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err(anyhow!("no problem {wanted:?}: {}", places.log()))
    };
    problem("defaults.excludeOutboundPorts in")?;
    ensure!(excluded(places.pod("test/plain")?.as_ref()) == serde_json::json!([80]));
    fs::remove_file(&config)?;
    problem("mesh.yaml")?;
    ensure!(excluded(places.pod("test/plain")?.as_ref()) == serde_json::json!([80]));
    fs::write(&config, "")?;
    places.wait_pod("test/plain", |pod| {
        excluded(pod) == serde_json::json!(OF_ISTIO_CNI)
    })?;
    problem("")
}

kernel_test!(a_start_with_bad_defaults);
/// A typo in the defaults, and the agent is restarted: what was active stays so.
fn a_start_with_bad_defaults() -> Result<()> {
    let mut lab = Lab::new()?;
    let config = lab.dir().join("mesh.yaml");
    let path = config.to_string_lossy().into_owned();
    let pod = lab.pod("app", 2)?;
    let start = || Agent::start_with(lab.places(), &Extra::arguments(&["--config", &path]));
    fs::write(&config, "defaults: {excludeOutboundPorts: [mysql]}\n")?;
    let mut agent = start()?;
    let text = agent.places.problems()?;
    ensure!(
        text.contains("mysql") && text.contains("no earlier ones"),
        "{text}"
    );
    fs::write(&config, "defaults: {excludeOutboundPorts: [3306]}\n")?;
    lab.write_pod("app", &pod, &[])?;
    let is = |port: u16| move |pod: Option<&Value>| excluded(pod) == serde_json::json!([port]);
    agent.places.wait_pod("test/app", is(3306))?;
    agent.end(Signal::SIGKILL)?;
    fs::write(&config, "defaults: {excludeOutboundPorts: 99999}\n")?;
    agent = start()?;
    let text = agent.places.problems()?;
    ensure!(
        text.contains("99999") && text.contains("stay active"),
        "{text}"
    );
    agent.places.wait_enrolled("test/app")?;
    ensure!(is(3306)(agent.places.pod("test/app")?.as_ref()));
    fs::write(&config, "defaults: {excludeOutboundPorts: 80}\n")?;
    agent.places.wait_pod("test/app", is(80))?;
    ensure!(agent.places.problems()? == "[]");
    // After a removal nothing brings them back, whatever remains beside the socket.
    let kept = agent.places.socket.with_file_name("last-defaults.yaml");
    let text = fs::read_to_string(&kept)?;
    agent.end(Signal::SIGKILL)?;
    let removed = agent.places.output(&["cleanup"])?;
    ensure!(removed.status.success() && !kept.exists(), "{removed:?}");
    fs::write(&kept, text)?;
    fs::write(&config, "defaults: {excludeOutboundPorts: 99999}\n")?;
    agent = start()?;
    let text = agent.places.problems()?;
    ensure!(text.contains("no earlier ones"), "{text}");
    agent.places.wait_enrolled("test/app")?;
    ensure!(excluded(agent.places.pod("test/app")?.as_ref()) == serde_json::json!(OF_ISTIO_CNI));
    Ok(())
}

kernel_test!(bad_defaults_end_the_start);
fn bad_defaults_end_the_start() -> Result<()> {
    let lab = Lab::new()?;
    let missing = lab.dir().join("missing.yaml");
    for (arguments, code, expected) in [
        (["--config", &missing.to_string_lossy()], 1, "missing.yaml"),
        // A usage error.
        (["--default", "proxyUid=envoy"], 2, "is not a numeric user"),
    ] {
        let agent = Agent::spawn_with(lab.places(), &Extra::arguments(&arguments))?;
        let status = agent.wait()?;
        ensure!(status.code() == Some(code), "{arguments:?}: {status}");
        ensure!(
            lab.places().log().contains(expected),
            "{}",
            lab.places().log()
        );
    }
    Ok(())
}

kernel_test!(virtual_interfaces_local_only);
fn virtual_interfaces_local_only() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    pod.furnish(&lab.outside())?;
    let annotation = (
        "traffic.sidecar.istio.io/kubevirtInterfaces",
        "eth7,et+1,eth1+",
    );
    lab.write_pod("app", &pod, &[annotation])?;
    // As on a kernel before 6.6, and as it was asked for.
    let old_kernel = Extra::variables(&[("SIDETRACK_WITHOUT", "ingress_programs")]);
    let refuse = Extra::arguments(&["--virtual-interfaces", "refuse"]);
    for extra in [old_kernel, refuse] {
        let refusing = Agent::start_with(lab.places(), &extra)?;
        refusing
            .places
            .wait_pod("test/app", is("rejected", "local-only"))?;
    }
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--virtual-interfaces", "local-only"]),
    )?;
    let places = &agent.places;
    places.wait_enrolled("test/app")?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    let outside = lab.outside().actor()?;
    for (device, by, rule) in [
        (Some(BESIDE), 15001, "-i eth1+ -j ISTIO_REDIRECT"),
        (None, 15006, "-p tcp -j ISTIO_IN_REDIRECT"),
    ] {
        let mut dial = Dial::new(&ROOT, at("10.78.0.2", 80));
        dial.device = device.map(str::to_owned);
        let arrived = outside
            .dial(dial)?
            .map_err(|errno| anyhow!("{device:?}: errno {errno}"))?;
        ensure!(arrived.accepted_by == by, "{device:?}: {arrived:?}");
        ensure!(
            arrived.server.original_v4 == Ok(at("10.78.0.2", 80)),
            "{arrived:?}"
        );
        let rules = places.json(&["rules", "test/app", "-o", "json"])?;
        let counted = rules
            .as_array()
            .into_iter()
            .flatten()
            .any(|line| line["rule"].to_string().contains(rule) && line["connections"] == 1);
        ensure!(counted, "{rule}: {rules}");
    }
    // The app's own connections are not inbound ones.
    let inside = pod.actor()?.dial(Dial::new(&APP, at("10.78.0.2", 80)))?;
    ensure!(inside.is_ok_and(|inside| inside.accepted_by == 80));
    let status = places.output(&["status"])?;
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    ensure!(
        status.contains("from eth7,et+1,eth1+ to elsewhere is not redirected"),
        "{status}"
    );
    Ok(())
}
