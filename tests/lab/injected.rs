//! Objects of a cluster with Istio in it.

use serde_json::{Value, json};

use crate::{
    agent::NODE,
    network::{Manifest, PodNet},
};

/// The label that opts in or out.
pub const LABEL: &str = "sidetrack.dev/interception";

/// A Kubernetes namespace, perhaps with [`LABEL`].
#[must_use]
pub fn namespace(name: &str, label: Option<&str>) -> Value {
    let labels = label.map(|label| json!({LABEL: label, "kubernetes.io/metadata.name": name}));
    json!({
        "kind": "Namespace", "apiVersion": "v1",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels},
    })
}

/// A pod as Istio 1.12 with its CNI plugin injects it, with what a real object has besides.
#[must_use]
pub fn injected(name: &str, uid: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid,
            "creationTimestamp": "2026-11-21T07:00:00Z",
            "labels": {"app": name, "security.istio.io/tlsMode": "istio"},
            "annotations": {
                "sidecar.istio.io/status": "{\"initContainers\":[\"istio-validation\"],\"containers\":[\"istio-proxy\"]}",
            },
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {}}],
        },
        "spec": {
            "nodeName": NODE,
            "serviceAccountName": "default",
            "initContainers": [{
                "name": "istio-validation", "image": "docker.io/istio/proxyv2:1.12.7",
                "args": ["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "--run-validation", "--skip-rule-apply"],
                "securityContext": {"runAsUser": 1337},
            }],
            "containers": [
                {"name": "app", "image": "httpbin", "ports": [{"containerPort": 80}]},
                {"name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.12.7",
                 "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local"]},
            ],
        },
        "status": {"phase": "Running", "podIP": "10.77.0.2", "podIPs": [{"ip": "10.77.0.2"}]},
    })
}

/// The manifest of pod `test/app` for the directory of an agent: what its istio-init is given says what
/// is intercepted.
#[must_use]
pub fn with_istio_init(pod: &PodNet, arguments: &[&str], variables: &[(&str, &str)]) -> Manifest {
    Manifest::new("app", pod).with_istio_init(arguments, variables)
}
