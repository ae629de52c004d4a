//! This node, as `top` reads it: from the agent, or from the pinned maps while it does not answer.

use std::{
    cell::RefCell,
    env, fs,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use sidetrack_live::{
    TraceLine,
    top::{Meter, Origin, Outlet, PodKey, Row, Source, TopReport, Traced, Update},
};
use tokio::sync::mpsc;

use crate::observe::trace::Filter;
use crate::{
    api::{AgentStatus, PodState, PodStatus},
    cli::{Places, pods, rules},
    client::Client,
};

/// The node that this runs on.
#[derive(Debug)]
pub(super) struct Node {
    places: Places,
    interval: Duration,
    name: String,
    started: Instant,
    meter: Mutex<Meter>,
}

impl Node {
    pub(super) fn new(places: Places, interval: Duration) -> Self {
        Self {
            places,
            interval,
            name: node_name(),
            started: Instant::now(),
            meter: Mutex::default(),
        }
    }

    /// Reads the counters and everything around them.
    pub(super) async fn report(&self) -> TopReport {
        let client = Client::new(&self.places.socket);
        let agent: Result<AgentStatus> = client.get("/v1/status").await;
        // One that has not answered in time is not asked again.
        let pods: Result<Vec<PodStatus>> = match &agent {
            Ok(_) => client.get("/v1/pods").await,
            Err(error) => Err(anyhow!("{error:#}")),
        };
        let (origin, no_answer, pods) = match pods {
            Ok(pods) => (Origin::Agent, None, pods),
            Err(error) => match pods::pinned(&self.places) {
                Ok(pods) => (Origin::PinnedMaps, Some(format!("{error:#}")), pods),
                Err(pinned) => {
                    let why = format!("{error:#}; the pinned maps cannot be read: {pinned:#}");
                    return TopReport::silent(&self.name, why);
                }
            },
        };
        let at = self.started.elapsed();
        let (version, mut problems) = match agent {
            Ok(agent) => (Some(agent.version), agent.problems),
            Err(_) => (None, Vec::new()),
        };
        problems.extend(pods.iter().filter_map(PodStatus::problem));
        let pods = pods.into_iter().filter(is_shown).map(row);
        let mut meter = self.meter.lock();
        let (since, pods) = meter.read(at, pods.collect());
        TopReport {
            node: self.name.clone(),
            version,
            origin,
            no_answer,
            problems,
            seconds: since.map(|since| since.as_secs_f64()),
            pods,
        }
    }
}

impl Source for Node {
    async fn feed(&self, out: mpsc::Sender<Update>) -> Result<()> {
        loop {
            let begun = Instant::now();
            if out.send(Update::Report(self.report().await)).await.is_err() {
                return Ok(());
            }
            tokio::time::sleep(self.interval.saturating_sub(begun.elapsed())).await;
        }
    }

    async fn rules(&self, pod: PodKey) -> Result<String> {
        let name = pod.name.parse().map_err(anyhow::Error::msg)?;
        rules::of_pod(&self.places, &name).await
    }

    async fn trace(&self, pod: PodKey, out: mpsc::Sender<Traced>) -> Result<()> {
        let filter = Filter {
            pod: Some(pod.name),
            ..Filter::default()
        };
        let path = format!("/v1/trace?{}", serde_urlencoded::to_string(filter)?);
        let outlet = RefCell::new(Outlet::new(out));
        let began = || {
            outlet.borrow().began();
            Ok(())
        };
        let client = Client::new(&self.places.socket);
        let lines = client.lines(&path, began, |line: TraceLine| {
            outlet.borrow_mut().line(line);
            Ok(ControlFlow::Continue(()))
        });
        lines.await
    }
}

/// The node's name in the cluster, which its agent has in this variable; otherwise that of the machine.
fn node_name() -> String {
    let in_cluster = env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    in_cluster.unwrap_or_else(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() { "unknown" } else { name }.to_owned()
    })
}

/// Pods that sidetrack leaves alone have no connections to show.
fn is_shown(pod: &PodStatus) -> bool {
    pod.state != PodState::Skipped
}

/// A row without rates, and the cookie of the pod's network namespace when enrolled.
fn row(pod: PodStatus) -> (Option<u64>, Row) {
    let cookie = pod.netns.map(|netns| netns.cookie);
    let sidecar = cookie.map(|_| pod.sidecar.unwrap_or_default());
    let row = Row {
        sidecar: sidecar.as_ref().map(|it| it.word().to_owned()),
        waiting: sidecar.map(|it| it.waiting()),
        connections: cookie.map(|_| pod.connections),
        namespace: pod.namespace,
        name: pod.name,
        state: pod.state.name().to_owned(),
        reason: pod.reason,
        per_second: None,
    };
    (cookie, row)
}
