//! What `status` has found, from the agents' answers. Pure.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};

use sidetrack_live::SidecarCounts;
use sidetrack_policy::{
    gate::{OPEN_GATE, names_any},
    text::shortened,
};

use crate::{agents::Agent, ask::Answers, cluster::WantedAgents, pods::Row};

/// What an agent's `status` says.
#[derive(Debug, Deserialize)]
pub struct AgentReport {
    agent: Option<AgentPart>,
    agent_state: String,
    kernel: Option<String>,
    pods: Option<BTreeMap<String, u64>>,
    sidecars: Option<SidecarCounts>,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct AgentPart {
    version: String,
}

/// Everything the command shows.
#[derive(Debug, Serialize)]
pub struct ClusterReport {
    /// Every node.
    pub nodes: Vec<NodeRow>,
    /// How many nodes should have an agent, if the DaemonSet says so.
    pub wanted_agents: Option<u32>,
    /// What interception probes have measured, if there are any.
    pub probes: Option<Probes>,
    /// Labeled pods that are not intercepted.
    pub not_intercepted: Vec<Missed>,
    /// Labeled pods of nodes whose agent does not answer. Those that it has enrolled stay intercepted.
    pub not_known: Vec<Missed>,
    /// Who has not answered, and why.
    pub unanswered: Vec<String>,
    /// What people should know although nothing is wrong.
    pub notes: Vec<String>,
    /// What is wrong.
    pub problems: Vec<String>,
}

/// How many of the pods that measure it have seen connections intercepted.
#[derive(Debug, Serialize)]
pub struct Probes {
    /// Those that have.
    pub intercept: usize,
    /// All.
    pub pods: usize,
}

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// The agent's pod.
    pub agent: Option<String>,
    /// The agent's version.
    pub version: Option<String>,
    /// The agent's word for its state; or `no-answer`, `no-agent`.
    pub state: String,
    /// Why there is no answer.
    pub problem: Option<String>,
    /// The node's kernel.
    pub kernel: Option<String>,
    /// How many pods are in each state.
    pub pods: Option<BTreeMap<String, u64>>,
    /// How many sidecars of enrolled pods are in each state, if the agent says so.
    pub sidecars: Option<SidecarCounts>,
}

/// A labeled pod that is not intercepted.
#[derive(Debug, Serialize)]
pub struct Missed {
    namespace: String,
    name: String,
    node: Option<String>,
    state: String,
    reason: Option<String>,
}

impl NodeRow {
    /// Whether its agent is ready, if it has one, and no sidecar is down or hangs.
    pub fn is_fine(&self) -> bool {
        let is_ready = matches!(self.state.as_str(), "ready" | "no-agent");
        is_ready && self.sidecars.as_ref().is_none_or(SidecarCounts::is_fine)
    }
}

impl ClusterReport {
    /// How many nodes there are in each state.
    pub fn counts(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.state.as_str()).or_default() += 1;
        }
        counts
    }

    /// Adds what the pods that measure interception have found.
    pub fn add_probes(&mut self, pods: &[Pod]) {
        let stays = |pod: &&Pod| pod.metadata.deletion_timestamp.is_none();
        let pods: Vec<&Pod> = pods.iter().filter(stays).collect();
        if pods.is_empty() {
            return;
        }
        let failing: Vec<&Pod> = pods.iter().copied().filter(|pod| !is_ready(pod)).collect();
        self.probes = Some(Probes {
            intercept: pods.len() - failing.len(),
            pods: pods.len(),
        });
        self.problems.extend(failing.into_iter().map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            let (node, name) = (node.unwrap_or("no node"), pod.name_any());
            let namespace = pod.namespace().unwrap_or_default();
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            match phase.unwrap_or("Unknown") {
                "Running" => format!(
                    "{node}: its interception probe is not ready: kubectl logs -n {namespace} {name} -c app says what it has measured"
                ),
                phase => format!(
                    "{node}: its interception probe has measured nothing, since its pod is {phase}: kubectl describe -n {namespace} pod {name} says why"
                ),
            }
        }));
    }

    /// Puts the answers together. `nodes` may be unknown to a user who may not list them.
    pub fn of(
        agents: &BTreeMap<String, Agent>,
        mut answers: Answers<AgentReport>,
        (nodes, wanted): (Result<Vec<Node>>, Result<WantedAgents>),
        rows: &[Row],
    ) -> Self {
        let mut notes = Vec::new();
        let mut problems = Vec::new();
        let mut unanswered = Vec::new();
        let wanted = wanted
            .map_err(|error| {
                notes.push(format!(
                    "how many nodes should have an agent is not known: {error:#}"
                ));
            })
            .ok();
        let gates = wanted.iter().flat_map(|it| &it.open_gate);
        let gates: Vec<&String> = gates.filter(|it| names_any(it)).collect();
        // The agents of these nodes say the same.
        let is_named = !gates.is_empty();
        let is_new = |line: &&String| !(is_named && line.contains(OPEN_GATE));
        problems.extend(gates.into_iter().map(|nodes| {
            let nodes = shortened(nodes);
            format!("the gate is open by annotation {OPEN_GATE} of the DaemonSet, for nodes {nodes:?}: while their agents do not answer or are not ready, pods start past their sidecars")
        }));
        let wanted_agents = wanted.map(|it| it.nodes);
        problems.extend(without_agent(wanted_agents, agents.len()));
        let listed = nodes.unwrap_or_else(|error| {
            notes.push(format!(
                "nodes without an agent are not shown unless they have labeled pods: {error:#}"
            ));
            Vec::new()
        });
        let kernels: BTreeMap<String, Option<String>> = listed.iter().map(kernel).collect();
        let names: BTreeSet<&String> = kernels.keys().chain(agents.keys()).collect();
        let mut versions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut rows_of_nodes = Vec::new();
        for node in names {
            let answer = answers.remove(node);
            let mut row = NodeRow::of(node, agents.get(node), answer.as_ref());
            row.kernel = row.kernel.or_else(|| kernels.get(node).cloned().flatten());
            let named = |line: &String| format!("{node}: {line}");
            unanswered.extend(row.problem.as_ref().map(named));
            if let Some(Ok(answer)) = &answer {
                notes.extend(answer.notes.iter().map(named));
                // The command answers in place of an agent that does not. Why it does not is its first problem.
                let (why, others) = match answer.agent_state.as_str() {
                    "silent" => answer.problems.split_at(1.min(answer.problems.len())),
                    _ => answer.problems.split_at(0),
                };
                unanswered.extend(why.iter().filter(is_new).map(named));
                problems.extend(others.iter().filter(is_new).map(named));
            }
            if let Some(version) = &row.version {
                versions.entry(version.clone()).or_default().push(node);
            }
            rows_of_nodes.push(row);
        }
        problems.extend(different(&versions));
        Self {
            nodes: rows_of_nodes,
            wanted_agents,
            probes: None,
            not_intercepted: pods_of(rows, Row::is_missed),
            not_known: pods_of(rows, Row::is_unknown),
            unanswered,
            notes,
            problems,
        }
    }
}

impl NodeRow {
    fn of(node: &str, agent: Option<&Agent>, answer: Option<&Result<AgentReport, String>>) -> Self {
        let (state, problem) = match answer {
            None => ("no-agent", None),
            Some(Err(problem)) => ("no-answer", Some(problem.clone())),
            Some(Ok(answer)) => (answer.agent_state.as_str(), None),
        };
        let answer = answer.and_then(|answer| answer.as_ref().ok());
        Self {
            node: node.to_owned(),
            agent: agent.map(|agent| agent.pod.clone()),
            version: answer.and_then(|answer| Some(answer.agent.as_ref()?.version.clone())),
            state: state.to_owned(),
            problem,
            kernel: answer.and_then(|answer| answer.kernel.clone()),
            pods: answer.and_then(|answer| answer.pods.clone()),
            sidecars: answer.and_then(|answer| answer.sidecars),
        }
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

fn kernel(node: &Node) -> (String, Option<String>) {
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    (
        node.name_any(),
        info.map(|info| info.kernel_version.clone()),
    )
}

/// A sentence, if the agents' versions differ.
fn different(versions: &BTreeMap<String, Vec<&str>>) -> Option<String> {
    const NAMED: usize = 3;
    if versions.len() < 2 {
        return None;
    }
    let parts: Vec<String> = versions
        .iter()
        .map(|(version, nodes)| match nodes.len() {
            0..=NAMED => format!("{version} on {}", nodes.join(", ")),
            many => format!("{version} on {many} nodes"),
        })
        .collect();
    Some(format!(
        "the agents have different versions: {}; kubectl rollout status shows whether an upgrade is under way",
        parts.join("; ")
    ))
}

/// A sentence, if nodes that should have an agent have none.
fn without_agent(wanted: Option<u32>, agents: usize) -> Option<String> {
    let wanted = wanted? as usize;
    let missing = wanted.checked_sub(agents).filter(|missing| *missing > 0)?;
    Some(format!(
        "{missing} of {wanted} nodes that should have an agent have no pod of it: kubectl describe daemonset shows why"
    ))
}

fn pods_of(rows: &[Row], is_meant: fn(&Row) -> bool) -> Vec<Missed> {
    let meant = rows.iter().filter(|row| is_meant(row));
    meant
        .map(|row| Missed {
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            node: row.node.clone(),
            state: row.state.clone(),
            reason: row.reason.clone(),
        })
        .collect()
}
