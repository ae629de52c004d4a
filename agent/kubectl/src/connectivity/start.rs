//! Waits for the pods: until they run, are enrolled and are ready.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use sidetrack_policy::text::printable;

use super::place::{PAUSE, Place};
use crate::{
    ask::{self, Answers},
    cluster::Cluster,
    pods::Known,
};

/// Why a container does not start, in kubelet's words. None of them ends by waiting.
const IMAGE: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];
const CONTAINER: [&str; 3] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];
/// The pods that are to be enrolled.
const MESHED: [&str; 3] = ["client", "down", "server"];

/// Looks again and again until nothing is missing.
async fn wait(
    patience: Duration,
    what: &str,
    look: impl AsyncFn() -> Result<Vec<String>>,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let missing = look().await?;
        if missing.is_empty() {
            return Ok(());
        }
        if start.elapsed() >= patience {
            bail!("{what} after {patience:?}: {}", missing.join("; "));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until all containers run. A container that cannot start is an error at once.
pub async fn wait_running(place: &Place, patience: Duration) -> Result<()> {
    let look = async || {
        let pods = place.pods().await?;
        for pod in &pods {
            check(place, pod).await?;
        }
        let none = pods.is_empty().then(|| "there are none".to_owned());
        Ok(pods.iter().filter_map(not_running).chain(none).collect())
    };
    wait(patience, "pods do not run", look).await
}

/// Fails if a container of the pod cannot start, or has ended.
async fn check(place: &Place, pod: &Pod) -> Result<()> {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let (name, node) = (pod.name_any(), node.unwrap_or_default());
    for status in statuses(pod) {
        let Some(state) = &status.state else { continue };
        if let Some(waiting) = &state.waiting {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let message = printable(waiting.message.as_deref().unwrap_or_default());
            if IMAGE.contains(&reason) {
                bail!(
                    "image {:?} cannot be pulled on node {node} ({reason}: {message}): pass one that the nodes have or can pull",
                    status.image
                );
            }
            if CONTAINER.contains(&reason) {
                bail!(
                    "container {} of pod {name} cannot start on node {node} ({reason}: {message})",
                    status.name
                );
            }
        }
        let last = status
            .last_state
            .as_ref()
            .and_then(|last| last.terminated.as_ref());
        if let Some(ended) = state.terminated.as_ref().or(last) {
            let log = place.log(&name, &status.name).await;
            bail!(
                "container {} of pod {name} has ended with code {}; its image needs python3 in apps and envoy in sidecars. Its log: {}",
                status.name,
                ended.exit_code,
                printable(log.trim())
            );
        }
    }
    Ok(())
}

fn statuses(pod: &Pod) -> &[ContainerStatus] {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.container_statuses.as_deref());
    all.unwrap_or_default()
}

/// What a pod still waits for.
fn not_running(pod: &Pod) -> Option<String> {
    let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    let is_running = |status: &&ContainerStatus| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.running.is_some())
    };
    let running = statuses(pod).iter().filter(is_running).count();
    if running == wanted && wanted > 0 {
        return None;
    }
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut messages = conditions
        .filter(|condition| condition.status == "False")
        .filter_map(|condition| condition.message.clone());
    let why = messages
        .next()
        .unwrap_or_else(|| "no reason is given".to_owned());
    Some(format!(
        "{}: {running} of {wanted} containers run: {}",
        pod.name_any(),
        printable(&why)
    ))
}

/// Waits until the agents have enrolled the pods that have a sidecar.
pub async fn wait_enrolled(cluster: &Cluster, place: &Place, patience: Duration) -> Result<()> {
    let look = async || not_enrolled(cluster, place).await;
    wait(patience, "pods are not enrolled", look).await
}

async fn not_enrolled(cluster: &Cluster, place: &Place) -> Result<Vec<String>> {
    let pods = place.pods().await?;
    let node_of = |pod: &Pod| pod.spec.as_ref()?.node_name.clone();
    let mut agents = cluster.some_agents().await?;
    agents.retain(|node, _| pods.iter().any(|pod| node_of(pod).as_ref() == Some(node)));
    let words = ["pods", "-o", "json"];
    let (known, _): (Answers<Vec<Known>>, _) = ask::all(cluster, &agents, &words).await?;
    let meshed = pods
        .iter()
        .filter(|pod| MESHED.contains(&pod.name_any().as_str()));
    Ok(meshed
        .filter_map(|pod| {
            let node = node_of(pod).unwrap_or_default();
            let why = match known.get(&node) {
                None => "there is no agent".to_owned(),
                Some(Err(problem)) => problem.clone(),
                Some(Ok(known)) => state(known, place.name(), &pod.name_any())?,
            };
            Some(format!("{} on node {node}: {why}", pod.name_any()))
        })
        .collect())
}

/// What its agent says of a pod that is not enrolled.
fn state(known: &[Known], namespace: &str, name: &str) -> Option<String> {
    let mut all = known.iter().map(|known| &known.shown);
    match all.find(|pod| pod.namespace == namespace && pod.name == name) {
        None => Some("its agent does not know it".to_owned()),
        Some(pod) if pod.state == "enrolled" => None,
        Some(pod) => Some(match &pod.reason {
            Some(reason) => format!("{}, {reason}", pod.state),
            None => pod.state.clone(),
        }),
    }
}

/// Waits until client and server pass kubelet's probes. No container may have been restarted.
pub async fn wait_ready(place: &Place, patience: Duration) -> Result<String> {
    let look = async || {
        let pods = place.pods().await?;
        let probed = pods
            .iter()
            .filter(|pod| ["client", "server"].contains(&pod.name_any().as_str()));
        let mut waiting = Vec::new();
        for (pod, status) in
            probed.flat_map(|pod| statuses(pod).iter().map(|status| (pod.name_any(), status)))
        {
            let container = format!("container {} of pod {pod}", status.name);
            if status.restart_count > 0 {
                bail!("{container} was restarted");
            }
            waiting.extend((!status.ready).then_some(container));
        }
        Ok(waiting)
    };
    wait(patience, "not ready", look).await?;
    Ok("client and server are ready".to_owned())
}
