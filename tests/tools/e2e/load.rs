//! What a load has seen.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::kubectl::Kubectl;

/// How long after a second the load prints it, and some more.
const LATE: Duration = Duration::from_secs(10);

/// A time that begins.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    start: u64,
}

/// A time that has ended, in whole seconds.
#[derive(Clone, Copy, Debug)]
pub struct Period {
    start: u64,
    end: u64,
}

impl Window {
    /// From now on.
    pub fn open() -> Self {
        Self { start: now() }
    }

    /// Until now, with the seconds at the edges.
    pub fn end(self) -> Period {
        Period {
            start: self.start,
            end: now() + 1,
        }
    }

    /// Until now, without the seconds at the edges.
    pub fn end_inside(self) -> Period {
        Period {
            start: self.start + 1,
            end: now().saturating_sub(1),
        }
    }

    /// What a namespace's load has seen until now.
    pub fn close(self, kube: &Kubectl, namespace: &str) -> Result<Seen> {
        let period = self.end();
        wait_until_printed();
        period.seen(kube, namespace)
    }
}

/// Waits until loads have printed all they have seen until now.
pub fn wait_until_printed() {
    thread::sleep(LATE);
}

impl Period {
    /// What a namespace's load has seen in this time.
    pub fn seen(&self, kube: &Kubectl, namespace: &str) -> Result<Seen> {
        self.seen_by(kube, namespace, "deployment/load")
    }

    /// What the load of a workload has seen in this time.
    pub fn seen_by(&self, kube: &Kubectl, namespace: &str, workload: &str) -> Result<Seen> {
        let since = format!("--since={}s", now() - self.start + 30);
        let words = ["-n", namespace, "logs", workload, "-c", "app", &since];
        let text = kube.wait("the load's log", Duration::from_secs(30), |kube| {
            kube.run(&words).map(Some)
        })?;
        let mut seen = Seen::default();
        for line in text.lines() {
            let line: BTreeMap<String, Value> =
                serde_json::from_str(line).with_context(|| format!("the load's line {line}"))?;
            let second = line.get("t").and_then(Value::as_u64).unwrap_or_default();
            if !(self.start..=self.end).contains(&second) {
                continue;
            }
            for (name, value) in line.iter().filter(|(name, _)| *name != "t") {
                *seen.counts.entry(name.clone()).or_default() += value.as_u64().unwrap_or_default();
            }
        }
        ensure!(seen.calls() > 0, "the load made no call");
        Ok(seen)
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The calls of a window, by what became of them.
#[derive(Debug, Default)]
pub struct Seen {
    counts: BTreeMap<String, u64>,
}

impl Seen {
    fn count(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or_default()
    }

    /// All calls.
    pub fn calls(&self) -> u64 {
        self.count("ok") + self.count("failed")
    }

    /// No call failed.
    pub fn none_failed(&self) -> Result<String> {
        if self.count("failed") > 0 {
            bail!("{self:?}");
        }
        Ok(format!("{} requests, 0 failed", self.calls()))
    }

    /// No call failed, and none went past a sidecar.
    pub fn all_through_sidecars(&self) -> Result<String> {
        self.none_failed()?;
        if self.count("past_out") + self.count("past_in") > 0 {
            bail!("{self:?}");
        }
        Ok(format!(
            "{} requests, 0 failed, 0 past a sidecar",
            self.calls()
        ))
    }

    /// No call failed, and none went through a sidecar on its way out.
    pub fn none_redirected(&self) -> Result<String> {
        self.none_failed()?;
        if self.count("past_out") != self.calls() {
            bail!("{self:?}");
        }
        Ok(format!("{} requests, 0 failed, 0 redirected", self.calls()))
    }

    /// Every call went past both.
    pub fn all_direct(&self) -> Result<String> {
        self.none_failed()?;
        if self.count("past_out") != self.calls() || self.count("past_in") != self.calls() {
            bail!("{self:?}");
        }
        Ok(format!("{} requests, all direct", self.calls()))
    }
}
