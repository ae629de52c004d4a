//! The node's components restart under load, and the API server is away for a while.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    helm::NAMESPACE,
    load::Window,
    node,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

/// How long the API server is away.
const OUTAGE: Duration = Duration::from_secs(40);
/// How soon after it answers again a label takes effect, and the questions of this test around it.
const CURRENT: Duration = Duration::from_secs(4);

/// Lines of an outage in an agent's log: each of four watches has three at most.
const LINES: usize = 12;

/// Connects to the API server as agents do.
const REACH: &str = r#"exec python3 -c 'import os, socket
socket.create_connection((os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]), 1)'"#;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    // A window has whole seconds, and must not have that of the label.
    thread::sleep(Duration::from_secs(2));
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
    outage(world, checks)
}

fn outage(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    let claim = "the API server is away for 40 s: nothing changes for traffic";
    let window = Window::open();
    let before = Instant::now();
    if !world.stop("kube-apiserver")? {
        checks.skip(claim, "no --stop command");
        return Ok(());
    }
    thread::sleep(OUTAGE);
    world.restart("kube-apiserver")?;
    kube.wait("the API server answers", START, |kube| {
        kube.run(&["get", "--raw", "/readyz"]).map(Some)
    })?;
    let ready = Instant::now();
    kube.label(SHOP, Some("disabled"))?;
    // From pods the API server is reached through its Service, which kube-proxy has to follow first.
    kube.wait("the API server's Service answers", START, |kube| {
        node::run_everywhere(kube, REACH).map(Some)
    })?;
    let start = Instant::now();
    let released = world
        .wait_enrolled(SHOP, 0, START)
        .map(|()| (start.elapsed(), ready.elapsed()));
    checks.record(
        "after the outage a label takes effect within 4 s of the API server's Service",
        released.and_then(|(took, since_ready)| {
            ensure!(took < CURRENT, "{took:?}");
            let (took, since_ready) = (took.as_secs_f64(), since_ready.as_secs_f64());
            Ok(format!(
                "{took:.1} s, which is {since_ready:.1} s after /readyz"
            ))
        }),
    );
    checks.record(
        &format!("the outage takes at most {LINES} lines of warnings and errors in an agent's log"),
        few_lines(world, before.elapsed()),
    );
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;
    checks.record(claim, window.close(kube, SHOP)?.none_failed());
    world.wait_agents()
}

/// What the agents have logged about an outage within this time.
fn few_lines(world: &World, since: Duration) -> Result<String> {
    let since = format!("--since={}s", since.as_secs() + 1);
    let mut most = 0;
    for agent in world.agents()? {
        let name = agent["metadata"]["name"].as_str().context("a name")?;
        let log = world.kube.run(&["-n", NAMESPACE, "logs", name, &since])?;
        let lines: Vec<&str> = log.lines().filter(|line| is_bad(line)).collect();
        ensure!(
            lines.iter().any(|line| line.contains("watch pods")),
            "{name} does not report it: {log}"
        );
        ensure!(
            lines.len() <= LINES,
            "{} lines of {name}: {}",
            lines.len(),
            lines.join("\n")
        );
        most = most.max(lines.len());
    }
    Ok(format!("{most} lines"))
}

/// A warning or an error, in either of the log's formats; what is no line of the agent's own counts as well.
fn is_bad(line: &str) -> bool {
    let level = match serde_json::from_str::<Value>(line) {
        Ok(line) => line["level"].as_str().map(str::to_owned),
        Err(_) => line.split_whitespace().nth(1).map(str::to_owned),
    };
    !level.is_some_and(|level| level == "INFO" || level == "DEBUG")
}
