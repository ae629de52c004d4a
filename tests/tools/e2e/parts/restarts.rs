//! The node's components restart under load, and the API server is away for a while.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    load::Window,
    node,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(40);
/// How soon after it answers again a label takes effect, and the questions of this test around it.
const CURRENT: Duration = Duration::from_secs(4);

/// Connects to the API server as agents do.
const REACH: &str = r#"exec python3 -c 'import os, socket
socket.create_connection((os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]), 1)'"#;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    for component in ["kubelet", "containerd", "kube-apiserver"] {
        let claim = format!("restart of {component}");
        let window = Window::open();
        if !world.restart(component)? {
            checks.skip(&claim, "no --restart command");
            continue;
        }
        thread::sleep(Duration::from_secs(5));
        world.wait_nodes()?;
        world.wait_agents()?;
        checks.record(&claim, window.close(kube, SHOP)?.all_through_sidecars());
    }
    let claim = "the API server is away for 40 s: nothing changes for traffic";
    let window = Window::open();
    if !world.stop("kube-apiserver")? {
        checks.skip(claim, "no --stop command");
        return Ok(());
    }
    thread::sleep(OUTAGE);
    world.restart("kube-apiserver")?;
    kube.wait("the API server answers", START, |kube| {
        kube.run(&["get", "--raw", "/readyz"]).map(Some)
    })?;
    kube.label(SHOP, Some("disabled"))?;
    // From pods the API server is reached through its Service, which kube-proxy has to follow first.
    kube.wait("the API server's Service answers", START, |kube| {
        node::run_everywhere(kube, REACH).map(Some)
    })?;
    let start = Instant::now();
    let left = world
        .wait_enrolled(SHOP, 0, START)
        .map(|()| start.elapsed());
    checks.record(
        "after the outage a label takes effect within 4 s of the API server's Service",
        left.and_then(|took| {
            ensure!(took < CURRENT, "{took:?}");
            Ok(format!("{:.1} s", took.as_secs_f64()))
        }),
    );
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    checks.record(claim, window.close(kube, SHOP)?.none_failed());
    world.wait_agents()
}
