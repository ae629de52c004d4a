//! The namespaces whose pods sidetrack would take.

use std::collections::BTreeMap;

use serde::Serialize;
use sidetrack_policy::{
    facts::PodFacts,
    select::{Enroll, LABEL, NamespaceLabels, Wanted, is_completed, wanted_in},
    text::printable,
};

use super::Remarks;
use crate::{
    cluster::handler_of,
    kernel::{Kernel, mesh_on},
};

/// The most rejected pods that are named.
const NAMED: usize = 20;

/// A namespace that would change.
#[derive(Debug, Serialize)]
pub struct NamespaceRow {
    name: String,
    sidecars: usize,
    enrolled: usize,
    rejected: usize,
}

impl NamespaceRow {
    /// For the table.
    pub fn cells(&self) -> Vec<String> {
        let counts = [self.sidecars, self.enrolled, self.rejected];
        let counts = counts.iter().map(usize::to_string);
        [self.name.clone()].into_iter().chain(counts).collect()
    }
}

/// What decides about pods beside themselves.
pub struct Surroundings<'a> {
    /// The labels of namespaces.
    pub labels: &'a BTreeMap<String, String>,
    /// The kernels of nodes.
    pub kernels: &'a BTreeMap<String, Kernel>,
    /// The handlers of runtime classes.
    pub handlers: &'a BTreeMap<String, String>,
    /// Which pods agents would enroll.
    pub enroll: Enroll,
}

/// Namespaces with pods that would be enrolled or rejected.
pub fn rows(pods: &[PodFacts], on: &Surroundings<'_>, remarks: &mut Remarks) -> Vec<NamespaceRow> {
    let mut rows: BTreeMap<String, NamespaceRow> = BTreeMap::new();
    let mut rejected = Vec::new();
    for pod in pods.iter().filter(|pod| !is_completed(pod)) {
        let namespace = pod.meta.namespace.clone().unwrap_or_default();
        let label = on.labels.get(&namespace).map(String::as_str);
        let labels = NamespaceLabels::interception(label);
        let row = rows
            .entry(namespace.clone())
            .or_insert_with(|| NamespaceRow {
                name: namespace.clone(),
                sidecars: 0,
                enrolled: 0,
                rejected: 0,
            });
        row.sidecars += usize::from(pod.sidecar().is_some());
        let node = pod.spec.node_name.as_ref();
        let kernel = node.and_then(|node| on.kernels.get(node)).copied();
        let handler = handler_of(pod, on.handlers);
        match wanted_in(pod, labels, handler, &mesh_on(kernel, on.enroll)) {
            Wanted::Enrolled(_) => row.enrolled += 1,
            Wanted::Skipped(_) => {}
            Wanted::Rejected(reason) => {
                row.rejected += 1;
                rejected.push(format!("pod {}: {reason}", pod.meta.full_name()));
            }
        }
    }
    if rejected.len() > NAMED {
        let more = rejected.split_off(NAMED).len();
        rejected.push(format!(
            "and {more} more pods: kubectl sidetrack migrate NAMESPACE"
        ));
    }
    remarks.problems.extend(rejected);
    let other = |value: &&String| !matches!(value.as_str(), "enabled" | "disabled");
    let meaningless = on.labels.iter().filter(|(_, value)| other(value));
    remarks.notes.extend(meaningless.map(|(name, value)| {
        let value = printable(value);
        format!("label {LABEL} of namespace {name} is {value:?}, which has no effect: write enabled or disabled")
    }));
    rows.retain(|_, row| row.enrolled + row.rejected > 0);
    if rows.is_empty() {
        remarks.notes.push(
            "no namespace would change yet: label one with sidetrack.dev/interception=enabled"
                .to_owned(),
        );
    }
    rows.into_values().collect()
}
