//! What the sidecars and the app see of a request.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::install::{no_problem, pod_of};
use crate::{
    load::Window,
    report::Checks,
    world::{SHOP, SOON, World},
};

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    let window = Window::open();
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    checks.record(
        "running pods are enrolled without a lost request",
        window.close(kube, SHOP)?.none_failed(),
    );
    let window = Window::open();
    thread::sleep(Duration::from_secs(10));
    checks.record(
        "every request goes through both sidecars",
        window.close(kube, SHOP)?.all_through_sidecars(),
    );
    let (web, load) = (pod_of(world, "web")?, pod_of(world, "load")?);
    let ip = |pod: &str| -> Result<String> {
        let pod = kube.get(&["-n", SHOP, "pod", pod])?;
        Ok(pod["status"]["podIP"]
            .as_str()
            .context("an address")?
            .to_owned())
    };
    let (web_ip, load_ip) = (ip(&web)?, ip(&load)?);
    let service = world.url(SHOP)?;
    let service = service.trim_start_matches("http://").trim_end_matches('/');
    let out = last_line(world, &load, "outbound")?;
    checks.record(
        "the outbound sidecar's original destination is the service",
        addresses(&out, &format!("{service}:80"), &load_ip),
    );
    let into = last_line(world, &web, "inbound")?;
    checks.record(
        "the inbound sidecar's original destination is the app, its peer the client's pod",
        addresses(&into, &format!("{web_ip}:8080"), &load_ip),
    );
    let script = format!(
        "exec python3 -c 'import urllib.request as r; print(r.urlopen(\"http://{service}/\").read().decode())'"
    );
    let seen: Value = serde_json::from_str(kube.shell(SHOP, &load, "app", &script)?.trim())?;
    checks.record(
        "the app is called from 127.0.0.6",
        expect(&seen["client"], &json!("127.0.0.6")),
    );
    checks.record(
        "probes: all pods are ready and none was restarted",
        healthy(world),
    );
    let events = kube.items(&["-n", SHOP, "events"])?;
    let enrolled = events
        .iter()
        .filter(|event| event["reason"] == "Enrolled")
        .count();
    checks.record(
        "an Event reports that the pods are enrolled",
        (enrolled >= 2)
            .then(String::new)
            .context("fewer than two Events"),
    );
    checks.record("the agents see no problem", no_problem(world));
    Ok(())
}

fn expect(seen: &Value, expected: &Value) -> Result<String> {
    ensure!(seen == expected, "{seen}");
    Ok(String::new())
}

/// The last line of a sidecar's access log about a listener.
fn last_line(world: &World, pod: &str, listener: &str) -> Result<Value> {
    let words = ["-n", SHOP, "logs", pod, "-c", "istio-proxy", "--tail=200"];
    let text = world.kube.run(&words)?;
    let lines = text
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .into_iter()
        .find(|line| line["listener"] == listener)
        .with_context(|| format!("no line about {listener} in the log of {pod}"))
}

fn addresses(line: &Value, local: &str, remote_ip: &str) -> Result<String> {
    let remote = line["remote"].as_str().unwrap_or_default();
    ensure!(
        line["local"] == local && remote.starts_with(&format!("{remote_ip}:")),
        "{line}"
    );
    Ok(format!("{local} from {remote_ip}"))
}

fn healthy(world: &World) -> Result<String> {
    for pod in world.kube.items(&["-n", SHOP, "pods"])? {
        for container in pod["status"]["containerStatuses"]
            .as_array()
            .context("statuses")?
        {
            ensure!(
                container["ready"] == true && container["restartCount"] == 0,
                "{container}"
            );
        }
    }
    Ok(String::new())
}
