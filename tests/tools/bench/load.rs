//! What a pod under load comes to: many connections one after the other, and many at a time.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{
    pods::{Environment, IPTABLES, NOTHING, Pod, SIDETRACK},
    worker::{Answer, Worker},
};

/// Connections one after the other, each closed in the orderly way, to one destination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Churn {
    /// Who.
    pub contestant: String,
    /// How long, seconds.
    pub seconds: u64,
    /// Connections a second.
    pub rate: u64,
    /// Failed ones in all.
    pub failed: u64,
    /// Nanoseconds of connect(2).
    pub p50: u64,
    /// Nanoseconds of connect(2).
    pub p99: u64,
}

/// Connections at a time, from one source to a few destinations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Held {
    /// Who.
    pub contestant: String,
    /// Made and held.
    pub connections: u64,
    /// Failed.
    pub failed: u64,
    /// Kernel memory of each, both ends and everything that is kept about them, bytes.
    pub bytes_each: u64,
    /// Nanoseconds of connect(2), the median of all.
    pub p50: u64,
}

/// Those that take part.
const CONTESTANTS: [&str; 3] = [NOTHING, IPTABLES, SIDETRACK];

fn contestants(environment: &Environment) -> impl Iterator<Item = &Pod> {
    let pods = environment.pods.iter();
    pods.filter(|pod| CONTESTANTS.contains(&pod.name))
}

/// Connections of one pod, one after the other, for so many seconds.
pub fn churn_of(pod: &Pod, seconds: u64) -> Result<Answer> {
    // The last table may have been one of IPv6.
    pod.outbound.listen_v6(false)?;
    pod.outbound.send(&format!("sink {}", seconds + 1))?;
    let to = pod.dialed(0);
    let answer = pod.app.ask(&format!("churn {to} {seconds}"))?;
    pod.outbound.answer()?;
    Ok(answer)
}

/// One after the other, for so many seconds each.
pub fn churn(environment: &Environment, seconds: u64) -> Result<Vec<Churn>> {
    let one = |pod: &Pod| -> Result<Churn> {
        let answer = churn_of(pod, seconds)?;
        Ok(Churn {
            contestant: pod.name.to_owned(),
            seconds,
            rate: answer.count / seconds.max(1),
            failed: answer.failed,
            p50: answer.p50,
            p99: answer.p99,
        })
    };
    contestants(environment).map(one).collect()
}

/// A process may have 20,000 descriptors on many machines.
const PROCESSES: u8 = 3;

/// So many at a time.
pub fn hold(environment: &Environment, connections: u32) -> Result<Vec<Held>> {
    let each = connections.div_ceil(PROCESSES.into());
    let one = |pod: &Pod| -> Result<Held> {
        let apps: Vec<Worker> = more(pod, PROCESSES, false)?;
        let sidecars = more(pod, PROCESSES - 1, true)?;
        pod.outbound.listen_v6(false)?;
        let listeners = || sidecars.iter().chain([&pod.outbound]);
        let before = available()?;
        for listener in listeners() {
            listener.send("keep")?;
        }
        for (app, number) in apps.iter().zip(0..) {
            app.send(&format!("hold {} {each}", pod.dialed(number)))?;
        }
        let mut made = Vec::new();
        for app in &apps {
            made.push(app.answer()?);
        }
        for listener in listeners() {
            listener.answer()?;
        }
        let count: u64 = made.iter().map(|answer| answer.count).sum();
        let used = before.saturating_sub(available()?);
        for worker in listeners().chain(&apps) {
            worker.ask("release")?;
        }
        Ok(Held {
            contestant: pod.name.to_owned(),
            connections: count,
            failed: made.iter().map(|answer| answer.failed).sum(),
            bytes_each: used / count.max(1),
            p50: made.iter().map(|answer| answer.p50).sum::<u64>() / made.len() as u64,
        })
    };
    contestants(environment).map(one).collect()
}

fn more(pod: &Pod, count: u8, listens: bool) -> Result<Vec<Worker>> {
    (0..count).map(|_| pod.another(listens)).collect()
}

/// Bytes of memory that are available.
fn available() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let values: BTreeMap<&str, &str> = lines.collect();
    let value = values.get("MemAvailable").context("MemAvailable")?;
    let kib: u64 = value.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}
