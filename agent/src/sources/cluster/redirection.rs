//! The annotation by which istiod sees that a pod is in ambient mode: other pods then call it by HBONE.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource as _,
    api::{Patch, PatchParams, Request},
};
use serde::de::IgnoredAny;
use serde_json::json;
use sidetrack_policy::{
    PodRef,
    names::ambient::{REDIRECTED, REDIRECTION},
};
use tokio::{sync::watch, time::timeout};
use tracing::{debug, warn};

use super::client::whole;

/// The pods whose annotation is not as it should be.
pub type Redirections = BTreeMap<PodRef, Redirection>;

/// What one of them is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirection {
    /// Its uid: another pod may have its name by the time of the write.
    pub uid: Option<String>,
    /// Whether it is in ambient mode.
    pub is_in: bool,
}

/// Writes at a time: an admission webhook of one namespace may take long.
const AT_A_TIME: usize = 16;
/// When what could not be written is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Writes the annotation wherever it differs. Ends with the sender.
pub async fn keep(client: Client, mut differing: watch::Receiver<Redirections>) {
    let mut known = None;
    loop {
        let pods = differing.borrow_and_update().clone();
        let mut problem = None;
        let written = stream::iter(pods).map(|(pod, wanted)| {
            let client = client.clone();
            async move { (write(&client, &pod, &wanted).await, pod, wanted) }
        });
        let mut written = pin!(written.buffer_unordered(AT_A_TIME));
        while let Some((result, pod, wanted)) = written.next().await {
            match result {
                Ok(()) => debug!(%pod, wanted.is_in, "{REDIRECTION} written"),
                // The pod is gone.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                // Others' writes came first, or another pod has its name: then it is soon not among these.
                Err(error) => problem = problem.or(Some((pod, error))),
            }
        }
        let text = problem.as_ref().map(|(pod, error)| {
            format!(
                "pod {pod}: cannot write its annotation {REDIRECTION}: {error}{}",
                match error {
                    kube::Error::Api(status) if status.code == 403 =>
                        "; the agent's ClusterRole must allow to patch pods/status",
                    _ => "",
                }
            )
        });
        if let Some(text) = text.as_ref().filter(|text| known.as_ref() != Some(*text)) {
            warn!("{text}");
        }
        known = text;
        let change = differing.changed();
        let changed = match problem {
            Some(_) => timeout(RETRY_INTERVAL, change).await.unwrap_or(Ok(())),
            None => change.await,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// By the pod's status, as istio-cni does: that takes no right to change what a pod runs.
async fn write(client: &Client, pod: &PodRef, wanted: &Redirection) -> Result<(), kube::Error> {
    // Of a pod that may be large only the metadata comes back.
    const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let pods = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
    let value = wanted.is_in.then_some(REDIRECTED);
    let mut patch = json!({"metadata": {"annotations": {REDIRECTION: value}}});
    if let Some(uid) = &wanted.uid {
        patch["metadata"]["uid"] = json!(uid);
    }
    let mut request = pods
        .patch_subresource(
            "status",
            &pod.name,
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .map_err(kube::Error::BuildRequest)?;
    let accept = METADATA.parse().expect("a header's value");
    request.headers_mut().insert("accept", accept);
    let _: IgnoredAny = whole(client.request(request)).await?;
    Ok(())
}
