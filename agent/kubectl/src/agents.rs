//! The agents: one pod of their DaemonSet for each node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};
use kube::ResourceExt as _;
use sidetrack_policy::{select::Enroll, text::printable};

/// The agent's container in the chart and the manifests.
const CONTAINER: &str = "agent";

/// The agent of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The node.
    pub node: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// Its port for metrics, where readers ask.
    pub port: Option<u16>,
    /// Why it cannot be asked, such as `CrashLoopBackOff`.
    pub down: Option<String>,
    /// Which pods it enrolls.
    pub enroll: Enroll,
}

/// The agents by node. A node may have two pods for a moment, when one replaces the other: a running one
/// counts, of several the newest.
pub fn by_node(pods: &[Pod]) -> BTreeMap<String, Agent> {
    let ranked = pods.iter().filter_map(|pod| {
        let agent = agent(pod)?;
        let is_usable = agent.down.is_none() && pod.metadata.deletion_timestamp.is_none();
        Some(((is_usable, pod.metadata.creation_timestamp.clone()), agent))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by(|(one, _), (other, _)| one.cmp(other));
    // The last of a node counts.
    let agents = ranked.into_iter();
    agents
        .map(|(_, agent)| (agent.node.clone(), agent))
        .collect()
}

fn agent(pod: &Pod) -> Option<Agent> {
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.iter().find(|one| one.name == CONTAINER)?;
    Some(Agent {
        node: node(spec)?,
        namespace: pod.namespace().unwrap_or_default(),
        pod: pod.name_any(),
        port: port(container),
        down: down(pod),
        enroll: enroll(container),
    })
}

/// The node of a DaemonSet's pod. One that has not been scheduled yet is meant for the node in its affinity, which the
/// DaemonSet's controller writes.
fn node(spec: &PodSpec) -> Option<String> {
    spec.node_name.clone().or_else(|| {
        let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        let terms = required.as_ref()?.node_selector_terms.iter();
        let mut fields = terms
            .filter_map(|term| term.match_fields.as_ref())
            .flatten();
        let name = fields.find(|field| field.key == "metadata.name")?;
        name.values.as_ref()?.first().cloned()
    })
}

/// Why no command can run in the agent's container.
fn down(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_ref());
    let ours = |status: &&ContainerStatus| status.name == CONTAINER;
    let name = format!(
        "-n {} {}",
        pod.namespace().unwrap_or_default(),
        pod.name_any()
    );
    let Some(status) = statuses.into_iter().flatten().find(ours) else {
        let phase = status.and_then(|status| status.phase.as_deref());
        return match phase {
            // Nothing is known of its containers; asking shows what there is.
            Some("Running") => None,
            phase => Some(format!(
                "the agent's pod is {}{}: kubectl describe pod {name} shows more",
                printable(phase.unwrap_or("unknown")),
                unscheduled(pod)
            )),
        };
    };
    let state = status.state.as_ref()?;
    let waiting = state.waiting.as_ref();
    let reason = waiting.and_then(|it| it.reason.as_deref());
    // Why the last one has ended says more than for how long the next waits.
    let before = status
        .last_state
        .as_ref()
        .filter(|_| reason == Some("CrashLoopBackOff"));
    let before = before.and_then(|it| it.terminated.as_ref());
    if let Some(ended) = state.terminated.as_ref().or(before) {
        let last = ended.message.as_deref().and_then(last_line);
        let why = last.map_or_else(String::new, |line| format!("{line}: "));
        return Some(format!(
            "the agent's container has ended with code {}: {why}kubectl logs {name} shows more",
            ended.exit_code
        ));
    }
    let reason = waiting.map(|_| reason.unwrap_or("no reason is given"))?;
    let message = waiting.and_then(|it| last_line(it.message.as_deref()?));
    let message = message.map_or_else(String::new, |line| format!(" ({line})"));
    Some(format!(
        "the agent's container waits: {reason}{message}: kubectl describe pod {name} shows more"
    ))
}

/// Why the scheduler has found no room for a pod, in brackets; nothing if it has.
fn unscheduled(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|it| it.conditions.iter().flatten());
    let scheduled = conditions.find(|it| it.type_ == "PodScheduled" && it.status == "False");
    let message = scheduled.and_then(|it| last_line(it.message.as_deref()?));
    message.map_or_else(String::new, |why| format!(" ({why})"))
}

/// The last line of a text that has one, as it can be shown.
fn last_line(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().map(printable)
}

/// The port for metrics, as the chart names it.
fn port(container: &Container) -> Option<u16> {
    let mut ports = container.ports.iter().flatten();
    let metrics = ports.find(|port| port.name.as_deref() == Some("metrics"));
    metrics?.container_port.try_into().ok()
}

/// `--enroll` of the agent.
fn enroll(container: &Container) -> Enroll {
    let words = || container.command.iter().chain(&container.args).flatten();
    let after = words().skip_while(|word| *word != "--enroll").nth(1);
    let attached = words().find_map(|word| word.strip_prefix("--enroll="));
    match attached.or(after.map(String::as_str)) {
        Some("injected") => Enroll::Injected,
        _ => Enroll::Labeled,
    }
}

#[cfg(test)]
mod tests;
