//! Pods for unit tests.

use k8s_openapi::api::core::v1::Pod;

use crate::{
    inputs::Inputs,
    policy::{Policy, PolicyError},
};

/// The policy of a pod without defaults of a mesh.
pub(crate) fn of_pod(pod: &Pod) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

/// A pod from its manifest.
pub(crate) fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).expect("test manifest")
}

/// A pod with a sidecar and annotations.
pub(crate) fn annotated(annotations: &[(&str, &str)]) -> Pod {
    let mut pod = pod("spec:\n  containers: [{name: app}, {name: istio-proxy}]\n");
    pod.metadata.annotations = Some(
        annotations
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    );
    pod
}
