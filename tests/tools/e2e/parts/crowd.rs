//! Many pods on a node, enrolled and released at a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    mesh,
    report::Checks,
    world::{CROWD, World},
};

/// Many pods on few cores take a while to start.
const START: Duration = Duration::from_secs(900);

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    let count = room(world)?.min(world.options.pods);
    kube.apply(&mesh::namespace(CROWD)?)?;
    kube.apply(&[mesh::crowd(CROWD, &world.options.mesh_image, count)])?;
    kube.rollout(CROWD, "deployment/crowd", START)?;
    for turn in ["enrolled by the label of their namespace", "and again"] {
        let start = Instant::now();
        kube.label(CROWD, Some("enabled"))?;
        let done = world
            .wait_enrolled(CROWD, count, START)
            .map(|()| start.elapsed());
        checks.record(
            &format!("{count} pods {turn}"),
            done.and_then(|took| {
                ensure!(took < Duration::from_secs(30), "{took:?}");
                Ok(format!("{:.1} s", took.as_secs_f64()))
            }),
        );
        kube.label(CROWD, Some("disabled"))?;
        world.wait_enrolled(CROWD, 0, START)?;
    }
    kube.delete_namespace(CROWD)
}

/// How many more pods the nodes take.
fn room(world: &World) -> Result<usize> {
    let mut room = 0;
    for node in world.kube.items(&["nodes"])? {
        let pods = node["status"]["allocatable"]["pods"]
            .as_str()
            .context("allocatable pods")?;
        room += pods.parse::<usize>()?;
    }
    let running = |pod: &Value| {
        !matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        )
    };
    let pods = world.kube.items(&["pods", "-A"])?;
    Ok(room.saturating_sub(pods.iter().filter(|pod| running(pod)).count()))
}
