//! The taint that keeps pods off a node until its agent is ready.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tracing::{info, warn};

use super::client::whole;

/// The taint's key. Nodes are created with it, for example by kubelet's `--register-with-taints`.
pub const TAINT: &str = "sidetrack.dev/not-ready";

/// After a failure.
const PAUSE: Duration = Duration::from_secs(2);
/// A node that registers again may have the taint again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the node free of the taint. To be started once the agent is ready; it does not end.
pub async fn remove_taint(client: Client, node: String) {
    let nodes: Api<Node> = Api::all(client);
    let mut last_problem = None;
    loop {
        let pause = match whole(remove(&nodes, &node)).await {
            Ok(removed) => {
                if removed {
                    info!(node, "taint {TAINT} removed: pods may come");
                }
                last_problem = None;
                RECHECK_INTERVAL
            }
            // Another client has changed the node meanwhile.
            Err(kube::Error::Api(status)) if status.code == 409 => Duration::from_millis(100),
            Err(error) => {
                let problem = format!(
                    "cannot remove taint {TAINT} from node {node}: {error}; the agent's ClusterRole must allow to get and patch nodes"
                );
                if last_problem.as_ref() != Some(&problem) {
                    warn!("{problem}");
                    last_problem = Some(problem);
                }
                PAUSE
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn remove(nodes: &Api<Node>, name: &str) -> Result<bool, kube::Error> {
    let node = nodes.get(name).await?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let others: Vec<&Taint> = taints.iter().filter(|taint| taint.key != TAINT).collect();
    if others.len() == taints.len() {
        return Ok(false);
    }
    // With the version the patch fails, rather than undo another client's change.
    let patch = json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": others},
    });
    nodes
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(true)
}
