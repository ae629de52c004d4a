//! What operators do all day, while requests are made.

use std::{thread, time::Duration};

use anyhow::Result;
use serde_json::json;

use crate::{
    load::Window,
    node,
    report::Checks,
    world::{SHOP, SOON, START, World},
};

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    kube.label(SHOP, Some("enabled"))?;
    world.wait_enrolled(SHOP, 2, SOON)?;

    let window = Window::open();
    for _ in 0..3 {
        kube.label(SHOP, Some("disabled"))?;
        world.wait_enrolled(SHOP, 0, SOON)?;
        kube.label(SHOP, Some("enabled"))?;
        world.wait_enrolled(SHOP, 2, SOON)?;
    }
    checks.record(
        "opting out and in three times",
        window.close(kube, SHOP)?.none_failed(),
    );

    let window = Window::open();
    for _ in 0..3 {
        node::kill_agents(kube)?;
        thread::sleep(Duration::from_secs(2));
    }
    world.wait_agents()?;
    checks.record(
        "agents killed three times",
        window.close(kube, SHOP)?.all_through_sidecars(),
    );

    let window = Window::open();
    world.helm.upgrade(&json!({"logFormat": "text"}))?;
    world.wait_agents()?;
    world.restart_agents()?;
    checks.record(
        "an upgrade and a rollout of the agents",
        window.close(kube, SHOP)?.all_through_sidecars(),
    );

    let window = Window::open();
    kube.run(&["-n", SHOP, "scale", "deployment/web", "--replicas=5"])?;
    kube.rollout(SHOP, "deployment/web", START)?;
    world.wait_enrolled(SHOP, 6, SOON)?;
    checks.record(
        "five replicas instead of one",
        window.close(kube, SHOP)?.none_failed(),
    );
    let window = Window::open();
    thread::sleep(Duration::from_secs(5));
    checks.record(
        "every replica is behind its sidecar",
        window.close(kube, SHOP)?.all_through_sidecars(),
    );
    kube.run(&["-n", SHOP, "scale", "deployment/web", "--replicas=1"])?;
    kube.rollout(SHOP, "deployment/web", START)
}
