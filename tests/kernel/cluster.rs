//! Pods from the API server.

mod api_load;
mod capabilities;
mod classes;
mod completed;
mod kubectl;
mod labels;
mod large_pods;
mod migration;
mod outage;
mod readers;
mod readiness;
mod sandbox;
mod scale;
mod skipped;
mod uninstall;

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lab::{
    actor::Actor,
    network::PodNet,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    wait::eventually,
};

use crate::fixture::{ClusterFixture, at};

/// A node with a pod in a namespace that is opted in, and a server outside on port 80.
fn labeled() -> Result<(ClusterFixture, Actor, PodNet)> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let pod = node
        .lab
        .pod("app", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    Ok((node, outside, pod))
}

fn accepted_by(client: &Actor) -> Result<u16> {
    let connected = client.dial(Dial::new(&APP, at(VIP, 80)))?;
    Ok(connected
        .map_err(|errno| anyhow!("errno {errno}"))?
        .accepted_by)
}

fn wait_for(condition: impl Fn() -> Result<bool>) -> Result<()> {
    eventually(Duration::from_secs(10), || {
        let now = condition();
        ensure!(matches!(now, Ok(true)), "still {now:?}");
        Ok(())
    })
}
