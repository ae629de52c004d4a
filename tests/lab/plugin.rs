//! The kubectl plugin, and what it looks for in a cluster.

use std::process::{Command, Stdio};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{apiserver::ApiServer, command::built};

/// The plugin with a command line, for a cluster.
pub fn command(api: &ApiServer, words: &[&str]) -> Result<Command> {
    let mut command = Command::new(built("kubectl-sidetrack")?);
    command
        .args(words)
        .env_remove("KUBECONFIG")
        .arg("--kubeconfig")
        .arg(api.kubeconfig())
        .stdin(Stdio::null());
    Ok(command)
}

/// The agents' DaemonSet, for so many nodes.
#[must_use]
pub fn daemonset(nodes: usize) -> Value {
    json!({
        "kind": "DaemonSet", "apiVersion": "apps/v1",
        "metadata": {
            "name": "sidetrack", "namespace": "sidetrack-system",
            "labels": {"app.kubernetes.io/name": "sidetrack"},
        },
        "spec": {"selector": {}, "template": {}},
        "status": {
            "currentNumberScheduled": nodes, "desiredNumberScheduled": nodes,
            "numberMisscheduled": 0, "numberReady": nodes,
        },
    })
}

/// The pod of the agent of a node, as the chart makes it. Its container is in a state.
#[must_use]
pub fn agents_pod(node: &str, state: &Value) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "name": format!("sidetrack-{node}"), "namespace": "sidetrack-system",
            "labels": {"app.kubernetes.io/name": "sidetrack", "app.kubernetes.io/instance": "sidetrack"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "agent", "args": ["agent", "--enroll=labeled"]}]},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "agent", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        }]},
    })
}
