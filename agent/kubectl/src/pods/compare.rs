//! The API server's pods beside the agents': a labeled pod that no agent has is not intercepted, and the
//! reason is found here.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sidetrack_policy::{
    facts::PodFacts,
    mesh::Mesh,
    select::{self, Skipped, Wanted},
};

use super::{Known, enroll_of};
use crate::{agents::Agent, ask::Answers};

/// Which of the agents' pods are meant.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// All.
    All,
    /// Those of a namespace.
    Namespace(&'a str),
    /// Those that the API server has listed.
    Listed,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct Row {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// The agent's word for its state; or `unscheduled`, `no-agent`, `not-listed`, `unknown`.
    pub state: String,
    /// Why, unless it is enrolled without a problem.
    pub reason: Option<String>,
    /// Whether it is labeled to be intercepted.
    pub labeled: bool,
    /// The agent's answer.
    pub known: Option<Known>,
}

impl Row {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// What people should know.
    pub fn remarks(&self) -> String {
        let known = self.known.as_ref();
        let notes = known.into_iter().flat_map(|known| &known.shown.notes);
        let refusal = known.and_then(Known::last_refusal);
        let hangs = known.and_then(Known::hangs);
        let all: Vec<&str> = self
            .reason
            .iter()
            .chain(&hangs)
            .chain(notes)
            .chain(&refusal)
            .map(String::as_str)
            .collect();
        all.join("; ")
    }

    /// For programs: the agent's answer, with the node and whether the pod is labeled.
    pub fn json(&self) -> Value {
        let known = self.known.as_ref();
        let mut pod = known.map_or_else(|| json!({}), |known| known.value.clone());
        pod["namespace"] = json!(self.namespace);
        pod["name"] = json!(self.name);
        pod["node"] = json!(self.node);
        pod["state"] = json!(self.state);
        pod["reason"] = json!(self.reason);
        pod["labeled"] = json!(self.labeled);
        pod
    }

    /// Whether it is labeled to be intercepted, and is not, as far as is known.
    pub fn is_missed(&self) -> bool {
        let is_intercepted = matches!(self.state.as_str(), "enrolled" | "outdated" | "partial");
        self.labeled && !is_intercepted && !self.is_unknown()
    }

    /// Whether it is not to be intercepted in spite of a label.
    pub fn is_skipped(&self) -> bool {
        self.state == "skipped"
    }

    /// Whether it is labeled to be intercepted, and no agent of its node says whether it is.
    pub fn is_unknown(&self) -> bool {
        self.labeled && matches!(self.state.as_str(), "unknown" | "no-agent")
    }
}

/// Every pod that an agent has, and every labeled pod that none has.
pub fn rows(
    pods: &[PodFacts],
    namespaces: &BTreeMap<String, String>,
    agents: &BTreeMap<String, Agent>,
    answers: &Answers<Vec<Known>>,
    scope: &Scope<'_>,
) -> Vec<Row> {
    // A node's word counts for its own pods.
    let mut by_name: BTreeMap<(String, &str), &Known> = BTreeMap::new();
    for (node, answer) in answers {
        if let Ok(pods) = answer {
            by_name.extend(pods.iter().map(|pod| ((pod.full_name(), &**node), pod)));
        }
    }
    let mut rows = Vec::new();
    let mut listed = BTreeSet::new();
    for pod in pods {
        let name = pod.meta.full_name();
        let node = pod.spec.node_name.as_deref();
        let namespace = pod.meta.namespace.clone().unwrap_or_default();
        let namespace_label = namespaces.get(&namespace);
        let mesh = Mesh::new(enroll_of(agents, node));
        let wanted = select::wanted(pod, namespace_label.map(String::as_str), &mesh);
        let labeled = is_labeled(pod, namespace_label, &wanted);
        let own = (name, node.unwrap_or_default());
        let known = by_name.get(&own).copied();
        listed.insert(own.0);
        let (state, reason) = match known {
            Some(known) => (known.shown.state.clone(), known.shown.reason.clone()),
            None if !labeled => continue,
            None => missing(node, answers, &wanted),
        };
        rows.push(Row {
            namespace,
            name: pod.meta.name.clone().unwrap_or_default(),
            node: node.map(str::to_owned),
            state,
            reason,
            labeled,
            known: known.cloned(),
        });
    }
    let others = by_name.iter().filter(|((name, _), known)| {
        let is_meant = match scope {
            Scope::All => true,
            Scope::Namespace(namespace) => known.shown.namespace == *namespace,
            Scope::Listed => false,
        };
        is_meant && !listed.contains(name)
    });
    rows.extend(others.map(|((_, node), known)| of_agent(node, known)));
    rows.sort_by_key(Row::full_name);
    rows
}

/// A pod that only its agent has: deleted in the API, and still running.
fn of_agent(node: &str, known: &Known) -> Row {
    Row {
        namespace: known.shown.namespace.clone(),
        name: known.shown.name.clone(),
        node: Some(node.to_owned()),
        state: known.shown.state.clone(),
        reason: known.shown.reason.clone(),
        labeled: false,
        known: Some(known.clone()),
    }
}

/// Whether somebody wants the pod to be intercepted. A label with another value than `enabled` or `disabled`
/// was meant to say something.
fn is_labeled(pod: &PodFacts, namespace_label: Option<&String>, wanted: &Wanted) -> bool {
    let own = pod.meta.labels.interception.as_ref();
    let is_enabled = [own, namespace_label]
        .into_iter()
        .flatten()
        .any(|label| label == "enabled");
    match wanted {
        Wanted::Enrolled(_) | Wanted::Rejected(_) => true,
        Wanted::Skipped(Skipped::OtherLabel(..)) => true,
        Wanted::Skipped(Skipped::OptedOut(_) | Skipped::NotOptedIn | Skipped::Completed) => false,
        Wanted::Skipped(_) => is_enabled && own.is_none_or(|label| label != "disabled"),
    }
}

/// State and reason of a labeled pod that no agent has.
fn missing(
    node: Option<&str>,
    answers: &Answers<Vec<Known>>,
    wanted: &Wanted,
) -> (String, Option<String>) {
    let Some(node) = node else {
        return (
            "unscheduled".to_owned(),
            Some("it has no node yet".to_owned()),
        );
    };
    let (state, reason) = match answers.get(node) {
        None => ("no-agent", format!("node {node} has no agent")),
        Some(Err(problem)) => (
            "unknown",
            format!("the agent of {node} does not answer: {problem}"),
        ),
        Some(Ok(_)) => (
            "not-listed",
            format!("the agent of {node} does not know it"),
        ),
    };
    // Without an agent's answer, what the pod itself says is still true. One that would be rejected may have an earlier
    // policy.
    let (state, reason) = match (wanted, state) {
        (Wanted::Skipped(reason), _) => ("skipped", reason.to_string()),
        (Wanted::Rejected(own), "not-listed") => ("rejected", own.to_string()),
        (Wanted::Rejected(own), _) => (state, format!("{reason}; it would be rejected: {own}")),
        (Wanted::Enrolled(_), _) => (state, reason),
    };
    (state.to_owned(), Some(reason))
}

#[cfg(test)]
mod tests;
