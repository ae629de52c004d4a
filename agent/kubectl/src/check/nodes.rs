//! The kernels of the nodes.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde::Serialize;

use super::Remarks;
use crate::{kernel::kernel_of, output::or_dash};

/// A node.
#[derive(Debug, Serialize)]
pub struct NodeRow {
    name: String,
    kernel: Option<String>,
    /// Unknown if kubelet has not reported its version, or that says little.
    ok: Option<bool>,
    restriction: Option<String>,
}

impl NodeRow {
    /// For the table.
    pub fn cells(&self) -> Vec<String> {
        let result = match (self.ok, &self.restriction) {
            (None, _) => "unknown".to_owned(),
            (Some(false), _) => "too old".to_owned(),
            (Some(true), None) => "fine".to_owned(),
            (Some(true), Some(restriction)) => format!("fine, but {restriction}"),
        };
        let kernel = or_dash(self.kernel.as_ref());
        vec![self.name.clone(), kernel, result]
    }
}

/// Every node with Linux.
pub fn rows(nodes: &[Node], remarks: &mut Remarks) -> Vec<NodeRow> {
    if nodes.is_empty() {
        remarks.problems.push("no node runs Linux".to_owned());
    }
    nodes.iter().map(|node| row(node, remarks)).collect()
}

fn row(node: &Node, remarks: &mut Remarks) -> NodeRow {
    let name = node.name_any();
    let Some((release, kernel)) = kernel_of(node) else {
        remarks.notes.push(format!(
            "unknown: the kernel of node {name}: kubelet has not reported it"
        ));
        return NodeRow {
            name,
            kernel: None,
            ok: None,
            restriction: None,
        };
    };
    let ok = kernel.is_enough(release);
    if ok.is_none() {
        remarks.notes.push(format!(
            "unknown: node {name} has Linux {release}, whose distribution ports facilities back: `sidetrack doctor` on the node says whether it can run"
        ));
    }
    if ok == Some(false) {
        remarks.problems.push(format!(
            "node {name} has Linux {release}, and sidetrack needs 5.15: if the distribution ports facilities back, `sidetrack doctor` on the node says whether it can run; otherwise keep the agents off it with nodeSelector"
        ));
    }
    NodeRow {
        kernel: Some(release.to_owned()),
        ok,
        restriction: kernel.restriction().filter(|_| ok == Some(true)),
        name,
    }
}
