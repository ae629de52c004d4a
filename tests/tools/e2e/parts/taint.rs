//! The taint that keeps pods away from a node whose agent is not ready.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::plugin::set_agents;
use crate::{
    mesh,
    report::Checks,
    world::{SHOP, SOON, START, TAINT, World},
};

/// An agent that is ready looks at its node once a minute.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(80);

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let ended = try_taint(world, checks);
    // A taint that remains would block the pods of the next parts.
    world.remove_taint();
    ended
}

fn try_taint(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let (kube, image) = (&world.kube, &world.options.mesh_image);
    world.helm.upgrade(&json!({"removeTaint": true}))?;
    world.wait_agents()?;
    set_agents(world, false)?;
    add(world)?;
    kube.apply(&[mesh::plain("tainted", SHOP, image)])?;
    checks.record(
        "without an agent the taint stays, and keeps a new pod away",
        stays(world),
    );
    set_agents(world, true)?;
    checks.record(
        "the taint goes when the agent is ready, and the pod starts",
        gone(world, SOON).and_then(|took| {
            kube.wait("the pod runs", START, |_| {
                let phase = &pod(world)?["status"]["phase"];
                ensure!(phase == "Running", "{phase}");
                Ok(Some(format!("{:.1} s", took.as_secs_f64())))
            })
        }),
    );
    world.delete_pod("tainted")?;
    let before = lives(world)?;
    add(world)?;
    let again = gone(world, REMOVAL_TIMEOUT).and_then(|took| {
        let after = lives(world)?;
        ensure!(before == after, "other agents: {before:?}, {after:?}");
        Ok(format!("{:.0} s", took.as_secs_f64()))
    });
    checks.record("put back later, it goes again", again);
    world.helm.upgrade(&json!({"removeTaint": false}))?;
    world.wait_agents()
}

/// Taints every node.
pub fn add(world: &World) -> Result<()> {
    let taint = format!("{TAINT}=:NoSchedule");
    let words = ["taint", "nodes", "--all", &taint, "--overwrite"];
    world.kube.run(&words).map(drop)
}

/// How many nodes have it.
fn tainted(world: &World) -> Result<usize> {
    let nodes = world.kube.items(&["nodes"])?;
    let has = |node: &&Value| {
        let taints = node["spec"]["taints"].as_array();
        taints.is_some_and(|all| all.iter().any(|taint| taint["key"] == TAINT))
    };
    Ok(nodes.iter().filter(has).count())
}

fn pod(world: &World) -> Result<Value> {
    world.kube.get(&["-n", SHOP, "pod", "tainted"])
}

/// The pod finds no node, and after a while still does not.
fn stays(world: &World) -> Result<String> {
    world.kube.wait("the pod finds no node", SOON, |_| {
        let pod = pod(world)?;
        let conditions = pod["status"]["conditions"].as_array();
        let refused = conditions.is_some_and(|all| {
            all.iter()
                .any(|it| it["type"] == "PodScheduled" && it["status"] == "False")
        });
        ensure!(refused, "{}", pod["status"]);
        Ok(Some(()))
    })?;
    thread::sleep(Duration::from_secs(5));
    let nodes = world.kube.items(&["nodes"])?.len();
    let tainted = tainted(world)?;
    ensure!(tainted == nodes, "{tainted} of {nodes} nodes have it");
    let phase = &pod(world)?["status"]["phase"];
    ensure!(phase == "Pending", "{phase}");
    Ok(String::new())
}

/// How long it takes until no node has it.
pub fn gone(world: &World, patience: Duration) -> Result<Duration> {
    let start = Instant::now();
    world.kube.wait("no node has the taint", patience, |_| {
        let tainted = tainted(world)?;
        ensure!(tainted == 0, "{tainted} nodes have it");
        Ok(Some(start.elapsed()))
    })
}

/// The agents, and how often each was restarted.
fn lives(world: &World) -> Result<Vec<String>> {
    let life = |agent: &Value| {
        let restarts = &agent["status"]["containerStatuses"][0]["restartCount"];
        format!("{} {restarts}", agent["metadata"]["uid"])
    };
    Ok(world.agents()?.iter().map(life).collect())
}
