//! A pod with processes without number. Other pods do not notice, and a foreign process in its network is still seen.
//!
//! `SIDETRACK_TEST_SCALE=30` makes the number 30 times as large.

use std::{
    fs,
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra},
    injected::injected,
    ledger::cgroup_root,
    network::PodNet,
    sidecar,
    wait::until,
};
use nix::sys::signal::Signal;

use super::{excess::scale, health::Health};
use crate::fixture::ClusterFixture;

/// Another pod is enrolled in less than this.
const SOON: Duration = Duration::from_secs(1);
/// A foreign process is shown within this. The rest is for a busy machine.
const SHOWN: Duration = Duration::from_millis(2000 + 1500);
/// Nothing takes longer than this, so that what is too slow is measured as well.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// For this time the agent's processor time is measured.
const IDLE: Duration = Duration::from_secs(10);
/// How often the agent may read while another pod is enrolled, beyond what it does without a crowd.
const MAX_READS: u64 = 200;

/// How often the agent has called read(2) and the like.
fn reads(agent: &Agent) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", agent.pid()))?;
    let count = text.lines().find_map(|line| line.strip_prefix("syscr: "));
    Ok(count.context("syscr")?.parse()?)
}

/// Starts a pod with a sidecar; how long it takes until it is enrolled.
fn enroll(node: &mut ClusterFixture, name: &str, number: u8) -> Result<(Duration, Actor, PodNet)> {
    let uid = node.lab.uid(number.into());
    let pod = node.lab.pod(name, number)?.under_kubelet(&node.lab, &uid)?;
    let sidecar = sidecar::start(&pod, &[80])?;
    let start = Instant::now();
    node.api.apply(injected(name, &uid))?;
    until(WAIT_TIMEOUT, "it is as wanted", || {
        let row = node.places().pod(&format!("shop/{name}"))?;
        Ok(row.is_some_and(|row| row["state"] == "enrolled"))
    })?;
    Ok((start.elapsed(), sidecar, pod))
}

/// Processor time of an idle agent, in percent.
fn idle_usage(agent: &Agent) -> Result<f64> {
    let before = agent.cpu_time()?;
    thread::sleep(IDLE);
    Ok((agent.cpu_time()? - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0)
}

kernel_test!(processes_without_number);
fn processes_without_number() -> Result<()> {
    let count = 500 * scale();
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    // A port that is free now.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let text = address.to_string();
    node.agent.end(Signal::SIGTERM)?;
    let extra = Extra {
        api: Some(&node.api),
        arguments: &["--metrics-addr", &text],
        ..Extra::default()
    };
    node.agent = Agent::start_with(node.lab.places(), &extra)?;
    let (_, crowd, hostile) = enroll(&mut node, "crowd", 2)?;
    let before = reads(&node.agent)?;
    let (alone, first, _) = enroll(&mut node, "first", 3)?;
    let alone_reads = reads(&node.agent)? - before;
    let alone_usage = idle_usage(&node.agent)?;

    crowd.sleepers(count)?;
    let health = Health::ask(address);
    let before = reads(&node.agent)?;
    let (beside, second, _) = enroll(&mut node, "second", 4)?;
    let beside_reads = reads(&node.agent)? - before;
    let answers = health.end();
    let usage = idle_usage(&node.agent)?;
    // A process of the node is in the crowd's network.
    let outside = Actor::start(&hostile.netns, &cgroup_root()?)?;
    let text = format!("process {} ", outside.pid());
    let is_shown = || -> Result<bool> { Ok(node.places().problems()?.contains(&text)) };
    let shown = until(WAIT_TIMEOUT, "it is as wanted", is_shown);
    println!(
        "{count} processes: another pod after {beside:?} with {beside_reads} reads (without them {alone:?}, {alone_reads} reads); idle agent {usage:.2} % of a processor ({alone_usage:.2} %); foreign process shown after {shown:?}; /healthz {answers:?}"
    );
    drop((first, second, outside, crowd));
    ensure!(beside < SOON);
    ensure!(
        beside_reads <= alone_reads + MAX_READS,
        "{beside_reads} reads, not {alone_reads}"
    );
    let shown = shown?;
    ensure!(shown < SHOWN, "{shown:?}");
    answers?;
    Ok(())
}
