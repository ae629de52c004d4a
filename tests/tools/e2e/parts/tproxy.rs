//! Mode TPROXY: the sidecar calls the app from the client's address.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::install::pod_of;
use crate::{
    mesh,
    report::Checks,
    world::{SHOP, START, World},
};

/// The pod.
const POD: &str = "transparent";

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    kube.label(SHOP, Some("enabled"))?;
    kube.apply(&[mesh::bare_transparent(POD, SHOP, image)])?;
    world.wait_enrolled(SHOP, 3, START)?;
    let url = world.url(SHOP)?;
    let through = format!("exec python3 /etc/mesh/app.py first {url}");
    let out = kube.wait("a request of its app", START, |kube| {
        kube.shell(SHOP, POD, "app", &through).map(Some)
    });
    checks.record(
        "its app's requests go through both sidecars",
        out.map(|seen| seen.trim().to_owned()),
    );
    checks.record("its app sees the address of the client's pod", seen(world));
    world.delete_pod(POD)?;
    world.wait_enrolled(SHOP, 2, START)
}

/// Whom the app sees when another pod calls it.
fn seen(world: &World) -> Result<String> {
    let kube = &world.kube;
    let client = pod_of(world, "load")?;
    let ip = |pod: &str| -> Result<String> {
        let pod = kube.get(&["-n", SHOP, "pod", pod])?;
        let ip = pod["status"]["podIP"].as_str();
        Ok(ip.context("an address")?.to_owned())
    };
    let (own, client_ip) = (ip(POD)?, ip(&client)?);
    let script = format!(
        "exec python3 -c 'import urllib.request as r; a = r.urlopen(\"http://{own}:8080/\"); print(a.headers[\"x-inbound-sidecar\"], a.read().decode())'"
    );
    let answer = kube.shell(SHOP, &client, "app", &script)?;
    let (sidecar, body) = answer.trim().split_once(' ').context("an answer")?;
    ensure!(sidecar == "envoy", "not through its sidecar: {answer}");
    let body: Value = serde_json::from_str(body)?;
    ensure!(body["client"] == client_ip, "{body} instead of {client_ip}");
    Ok(client_ip)
}
