//! Pods for unit tests.

use std::collections::BTreeMap;

use serde_json::json;

use crate::{error::PolicyError, facts::PodFacts, inputs::Inputs, policy::Policy};

/// The policy of a pod without defaults of a mesh.
pub(crate) fn of_pod(pod: &PodFacts) -> Result<Policy, Vec<PolicyError>> {
    Policy::of_pod(pod, &Inputs::default())
}

/// A pod from its manifest.
pub(crate) fn pod(yaml: &str) -> PodFacts {
    serde_saphyr::from_str(yaml).expect("test manifest")
}

/// A pod with a sidecar and annotations.
pub(crate) fn annotated(annotations: &[(&str, &str)]) -> PodFacts {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let pod = json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]},
    });
    serde_json::from_value(pod).expect("test manifest")
}
