//! A node with many pods, and how long its agent takes to enroll them.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lab::{
    agent::Agent,
    network::{Lab, PodNet},
    wait::eventually,
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// How long an agent took until all pods were enrolled.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Starts {
    /// Pods on the node.
    pub pods: usize,
    /// The first agent of the node, milliseconds.
    pub first_ms: u64,
    /// One that adopts the pods, milliseconds.
    pub takeover_ms: u64,
    /// Resident memory of the agent then, KiB.
    pub memory_kib: u64,
    /// Memory of the maps then, KiB.
    #[serde(default)]
    pub maps_kib: u64,
    /// Processor time of the agent in a second in which nothing changes, microseconds.
    #[serde(default)]
    pub idle_us: u64,
}

/// The pods. Fields drop in order.
pub struct Crowd {
    /// Its agent.
    pub agent: Agent,
    /// The node.
    pub lab: Lab,
    /// What its start took.
    pub starts: Starts,
}

impl Crowd {
    /// Makes a node with so many pods.
    pub fn start(pods: usize) -> Result<Self> {
        let mut lab = Lab::new()?;
        for number in 0..pods {
            let netns = lab.empty_namespace()?;
            let uid = lab.uid(number);
            let pod = PodNet {
                netns,
                cgroup: lab.kubelet_cgroup(&uid)?,
                uid,
                v4: [10, 77, 1, 1].into(),
                v6: [0xfd77, 0, 0, 0, 0, 0, 0, 1].into(),
            };
            let name = format!("filler{number}");
            lab.write_pod(&name, &pod, &[])?;
        }
        let (mut agent, first) = started(&lab, pods)?;
        agent.end(Signal::SIGTERM)?;
        let (agent, takeover) = started(&lab, pods)?;
        let cost = agent.places.json(&["cost", "-o", "json"])?;
        let maps = cost["maps"].as_array().into_iter().flatten();
        let maps: u64 = maps.filter_map(|map| map["bytes"].as_u64()).sum();
        let process = procfs::process::Process::new(agent.pid() as i32)?;
        let starts = Starts {
            pods,
            first_ms: first.as_millis() as u64,
            takeover_ms: takeover.as_millis() as u64,
            memory_kib: process.status()?.vmrss.unwrap_or_default(),
            maps_kib: maps / 1024,
            idle_us: 0,
        };
        Ok(Self { agent, lab, starts })
    }

    /// Processor time in a second, of some seconds beyond the first searches for listeners, which these pods do not have.
    pub fn idle(&self) -> Result<Duration> {
        const SECONDS: u32 = 20;
        thread::sleep(Duration::from_secs(20));
        let before = self.agent.cpu_time()?;
        thread::sleep(Duration::from_secs(SECONDS.into()));
        Ok(self.agent.cpu_time()?.saturating_sub(before) / SECONDS)
    }
}

/// Starts an agent and waits until it has all pods.
fn started(lab: &Lab, pods: usize) -> Result<(Agent, Duration)> {
    const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    let agent = Agent::spawn(lab.places())?;
    eventually(WAIT_TIMEOUT, || {
        let status = agent.places.json(&["status", "-o", "json"]);
        let enrolled = status.map(|status| {
            let is_up = status["agent"]["ready"] == true;
            is_up && status["pods"]["enrolled"].as_u64() == Some(pods as u64)
        });
        ensure!(
            enrolled.unwrap_or(false),
            "{pods} pods are not enrolled:\n{}",
            agent.places.log()
        );
        Ok(())
    })?;
    Ok((agent, start.elapsed()))
}
