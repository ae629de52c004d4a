//! What happens to the pods while they are dialed. Each is a thread that runs until it has
//! to stop, and then leaves things as they were.

mod agents;
mod flood;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;

pub use self::{
    agents::{Agents, Builds, programs, start, tail, wait_ready},
    flood::Floods,
};
use crate::{
    environment::{COMING, Environment, Pod},
    targets::{Policy, SIDECAR_IN},
    timeline::State,
    wire::Order,
};

/// How often what happened.
#[derive(Debug, Default)]
pub struct Events {
    /// Policies changed and seen active.
    pub flips: AtomicU64,
    /// Sidecars killed and started again.
    pub restarts: AtomicU64,
    /// Listener groups that shrank and grew again.
    pub shrinks: AtomicU64,
    /// Pods created and enrolled.
    pub created: AtomicU64,
    /// Pods destroyed.
    pub destroyed: AtomicU64,
}

fn more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// A random time between two, in milliseconds.
fn between(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(rng.u64(least..=most))
}

/// Gives pods that stay other policies.
pub fn flip_policies(environment: &Environment, events: &Events, mut rng: Rng) -> Result<()> {
    while environment.continues() {
        let pod = &environment.pods[rng.usize(..environment.pods.len())];
        give(environment, pod, Policy(rng.u16(..Policy::COUNT)))?;
        more(&events.flips);
        environment.pause(between(&mut rng, 0, 1000));
    }
    for pod in &environment.pods {
        give(environment, pod, Policy::FIRST)?;
    }
    Ok(())
}

fn give(environment: &Environment, pod: &Pod, policy: Policy) -> Result<()> {
    pod.timeline.change(|state| state.policies |= 1 << policy.0);
    environment.write_manifest(pod.number(), &pod.net, policy)?;
    environment.wait_policy(&pod.name(), policy)?;
    pod.timeline.change(|state| state.policies = 1 << policy.0);
    Ok(())
}

/// Kills sidecars and starts them again.
pub fn restart_sidecars(environment: &Environment, events: &Events, mut rng: Rng) -> Result<()> {
    while environment.continues() {
        environment.pause(between(&mut rng, 200, 4000));
        let pod = &environment.pods[rng.usize(..environment.pods.len())];
        let mut sidecar = pod.sidecar.lock();
        pod.timeline.change(|state| state.sidecar_down = true);
        sidecar.kill()?;
        environment.pause(between(&mut rng, 0, 300));
        *sidecar = environment.restart_sidecar(pod)?;
        pod.timeline.change(|state| state.sidecar_down = false);
        more(&events.restarts);
    }
    Ok(())
}

/// Closes all but one of a sidecar's inbound listeners and opens others.
pub fn shrink_listeners(environment: &Environment, events: &Events, mut rng: Rng) -> Result<()> {
    while environment.continues() {
        environment.pause(between(&mut rng, 100, 1500));
        let pod = &environment.pods[rng.usize(..environment.pods.len())];
        for count in [1, rng.usize(2..=8), crate::environment::LISTENERS] {
            {
                let sidecar = pod.sidecar.lock();
                sidecar.send(&Order::Keep(SIDECAR_IN, count))?;
                sidecar.hear::<String>()?;
            }
            environment.pause(between(&mut rng, 0, 500));
        }
        more(&events.shrinks);
    }
    Ok(())
}

/// Creates pods with their sidecars, enrolls them, and takes them away again. `part` of `parts` that do
/// so at the same time.
pub fn come_and_go(
    environment: &Environment,
    events: &Events,
    mut rng: Rng,
    (part, parts): (u16, u16),
) -> Result<()> {
    let mut number = COMING + part;
    while environment.continues() {
        let policy = Policy(rng.u16(..Policy::COUNT));
        let pod = environment.pod(
            number,
            State {
                policies: 1 << policy.0,
                not_enrolled: true,
                ..State::default()
            },
        )?;
        let to = rng.u16(..environment.pods.len() as u16);
        let peer = (to, &environment.pods[usize::from(to)].net);
        let inbound = environment.connect(&pod, peer)?;
        environment.write_manifest(pod.number(), &pod.net, policy)?;
        environment.wait_policy(&pod.name(), policy)?;
        pod.timeline.change(|state| state.not_enrolled = false);
        more(&events.created);
        environment.pause(between(&mut rng, 500, 6000));
        environment.disconnect(inbound)?;
        pod.timeline.change(|state| state.leaving = true);
        let name = pod.name();
        let manifest_first = rng.bool();
        if manifest_first {
            environment.remove_manifest(&name)?;
        }
        if rng.bool() {
            // In good order; otherwise in the middle of whatever it does.
            pod.app_dialer.send(&Order::End)?;
            pod.app_dialer.wait();
        }
        let net = pod.end();
        environment.remove(&net)?;
        if !manifest_first {
            environment.pause(between(&mut rng, 0, 2000));
            environment.remove_manifest(&name)?;
        }
        more(&events.destroyed);
        number += parts;
    }
    Ok(())
}
