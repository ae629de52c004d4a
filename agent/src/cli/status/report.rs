//! What the command shows.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use sidetrack_datapath::kernel::release;
use sidetrack_live::SidecarCounts;
use sidetrack_policy::mesh::MeshName;

use super::{
    super::{Places, output},
    hooks::{HookStatus, print_hooks},
};
use crate::{
    api::{AgentStatus, PodState, PodStatus},
    client::NoAnswer,
};

/// Everything the command shows.
#[derive(Debug, Serialize)]
pub(super) struct StatusReport {
    pub(super) kernel: String,
    pub(super) agent: Option<AgentStatus>,
    pub(super) agent_state: AgentState,
    pub(super) hooks: Vec<HookStatus>,
    /// Where the pods are from.
    pub(super) pods_from: Source,
    /// Unknown if neither could be read.
    pub(super) pods: Option<PodCounts>,
    /// Pods by the mesh whose rules they have, where that is known.
    pub(super) meshes: BTreeMap<&'static str, usize>,
    /// Sidecars of enrolled pods by what they do; unknown as the pods.
    pub(super) sidecars: Option<SidecarCounts>,
    pub(super) notes: Vec<String>,
    pub(super) problems: Vec<String>,
}

/// What is known of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AgentState {
    Ready,
    Starting,
    NotRunning,
    /// It has the socket and says nothing.
    Silent,
    /// Nothing of sidetrack is on this node.
    NotInstalled,
    /// It may not be asked, or its answer is not understood.
    Unknown,
}

impl AgentState {
    pub(super) fn of(answer: &Result<AgentStatus>) -> Self {
        match answer {
            Ok(agent) if agent.ready => Self::Ready,
            Ok(_) => Self::Starting,
            Err(error) => match error.downcast_ref::<NoAnswer>() {
                Some(NoAnswer::Absent { .. }) => Self::NotRunning,
                Some(NoAnswer::NotNow) => Self::Starting,
                Some(NoAnswer::Silent { .. }) => Self::Silent,
                Some(
                    NoAnswer::NotSocket { .. } | NoAnswer::Foreign { .. } | NoAnswer::Denied { .. },
                )
                | None => Self::Unknown,
            },
        }
    }
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    Agent,
    PinnedMaps,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct PodCounts {
    pub(super) enrolled: usize,
    pub(super) partial: usize,
    pub(super) waiting: usize,
    pub(super) rejected: usize,
    pub(super) skipped: usize,
    /// Of those that have a policy: enrolled with an earlier one.
    pub(super) outdated: usize,
}

impl PodCounts {
    pub(super) fn of(pods: &[PodStatus]) -> Self {
        let mut counts = Self::default();
        for pod in pods {
            match pod.state {
                PodState::Enrolled => counts.enrolled += 1,
                PodState::Outdated => counts.outdated += 1,
                PodState::Partial => counts.partial += 1,
                PodState::Waiting => counts.waiting += 1,
                PodState::Rejected => counts.rejected += 1,
                PodState::Skipped => counts.skipped += 1,
            }
        }
        counts
    }
}

impl StatusReport {
    /// Of a node without an agent and without pins of one.
    pub(super) fn of_nothing(places: &Places) -> Self {
        let (socket, bpffs) = (places.socket.display(), places.bpffs.display());
        Self {
            kernel: release::text_or_unknown(),
            agent: None,
            agent_state: AgentState::NotInstalled,
            hooks: Vec::new(),
            pods_from: Source::PinnedMaps,
            pods: Some(PodCounts::default()),
            meshes: BTreeMap::new(),
            sidecars: None,
            notes: Vec::new(),
            problems: vec![format!(
                "sidetrack is not installed here: no agent answers on {socket}, and no agent has pins in {bpffs}; `sidetrack doctor` says whether this node can run it"
            )],
        }
    }
}

pub(super) fn print(report: &StatusReport, wide: bool) -> Result<()> {
    let state = match report.agent_state {
        AgentState::Ready => "ready",
        AgentState::Starting => "starting",
        AgentState::NotRunning => "not running",
        AgentState::Silent => "does not answer",
        AgentState::NotInstalled => "not installed",
        AgentState::Unknown => "unknown",
    };
    let agent = report.agent.as_ref().map_or_else(
        || state.to_owned(),
        |agent| {
            let uptime = output::seconds(agent.uptime_seconds);
            format!("{}, pid {}, up {uptime}, {state}", agent.version, agent.pid)
        },
    );
    output::print(format!("agent     {agent}"))?;
    output::print(format!("kernel    {}", report.kernel))?;
    if let Some(agent) = &report.agent {
        output::print(format!("cgroup    {}", agent.cgroup))?;
        if agent.repairs > 0 {
            output::print(format!("repairs   {}, see the log", agent.repairs))?;
        }
    }
    output::print(format!("pods      {}", pods_line(report)))?;
    if let Some(sidecars) = &report.sidecars {
        output::print(format!("sidecars  {sidecars}"))?;
    }
    if !report.hooks.is_empty() {
        output::print("")?;
        print_hooks(&report.hooks, wide)?;
    }
    let events = report.agent.iter().flat_map(|agent| &agent.events);
    let events: Vec<String> = events.map(|event| event.cells().join("  ")).collect();
    for (title, lines) in [
        ("notes", &report.notes),
        ("problems", &report.problems),
        ("last of `sidetrack events`", &events),
    ] {
        if !lines.is_empty() {
            output::print(format!("\n{title}:"))?;
        }
        for line in lines {
            output::print(format!("  {line}"))?;
        }
    }
    Ok(())
}

/// Pods by the mesh whose rules they have, where that is known.
pub(super) fn meshes(pods: &[PodStatus]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for mesh in pods.iter().filter_map(PodStatus::mesh) {
        *counts.entry(mesh.name()).or_default() += 1;
    }
    counts
}

/// How many of each mesh, unless all are of Istio.
fn of_meshes(meshes: &BTreeMap<&'static str, usize>) -> String {
    if meshes.keys().all(|mesh| *mesh == MeshName::Istio.name()) {
        return String::new();
    }
    let meshes = meshes.iter();
    let meshes: Vec<String> = meshes
        .map(|(mesh, count)| format!("{count} of {mesh}"))
        .collect();
    format!("; {}", meshes.join(", "))
}

fn pods_line(report: &StatusReport) -> String {
    match (&report.pods, report.pods_from) {
        _ if report.agent_state == AgentState::NotInstalled => "none".to_owned(),
        (None, _) => "unknown".to_owned(),
        // The kernel has only those.
        (Some(pods), Source::PinnedMaps) => {
            format!("{} enrolled, read from the pinned maps", pods.enrolled)
        }
        (Some(pods), Source::Agent) => {
            let outdated = match pods.outdated {
                0 => String::new(),
                count => format!("{count} outdated, "),
            };
            format!(
                "{} enrolled, {outdated}{} partial, {} waiting, {} rejected, {} skipped{}",
                pods.enrolled,
                pods.partial,
                pods.waiting,
                pods.rejected,
                pods.skipped,
                of_meshes(&report.meshes)
            )
        }
    }
}
