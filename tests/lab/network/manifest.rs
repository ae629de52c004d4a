//! The manifest of a pod, for the directory of an agent.

use std::fmt;

use anyhow::{Result, anyhow};
use serde_json::{Value, json};

use super::PodNet;
use crate::product::{Inputs, PodFacts, Policy};

/// A pod as Istio's injector leaves it. Its text is JSON, which is YAML as well.
#[derive(Clone, Debug)]
pub struct Manifest(Value);

impl Manifest {
    /// A pod of namespace `test` with an app and a sidecar of no known version.
    #[must_use]
    pub fn new(name: &str, pod: &PodNet) -> Self {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "test",
                "annotations": {"sidetrack.dev/netns": pod.path()},
            },
            "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}]},
        });
        if !pod.uid.is_empty() {
            object["metadata"]["uid"] = pod.uid.as_str().into();
        }
        Self(object)
    }

    /// In another namespace.
    #[must_use]
    pub fn namespace(self, name: &str) -> Self {
        self.edited(|pod| pod["metadata"]["namespace"] = name.into())
    }

    /// With these annotations.
    #[must_use]
    pub fn annotated<K: AsRef<str>, V: AsRef<str>>(self, annotations: &[(K, V)]) -> Self {
        self.edited(|pod| {
            for (key, value) in annotations {
                pod["metadata"]["annotations"][key.as_ref()] = value.as_ref().into();
            }
        })
    }

    /// With a label.
    #[must_use]
    pub fn labeled(self, key: &str, value: &str) -> Self {
        self.edited(|pod| pod["metadata"]["labels"][key] = value.into())
    }

    /// With a sidecar of Istio 1.28, for both families or for IPv4 alone.
    #[must_use]
    pub fn dual_stack(self, is_dual: bool) -> Self {
        self.edited(|pod| {
            pod["spec"]["containers"][1] = json!({
                "name": "istio-proxy", "image": "docker.io/istio/proxyv2:1.28.0",
                "env": [{"name": "ISTIO_DUAL_STACK", "value": is_dual.to_string()}],
            });
        })
    }

    /// With an istio-init, whose arguments and variables say what is intercepted.
    #[must_use]
    pub fn with_istio_init(self, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let variables: Vec<Value> = variables
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let arguments = [&["istio-iptables"], arguments].concat();
        self.edited(|pod| {
            pod["spec"]["initContainers"] =
                json!([{"name": "istio-init", "args": arguments, "env": variables}]);
        })
    }

    /// With one more variable of the sidecar.
    #[must_use]
    pub fn with_variable(self, name: &str, value: &str) -> Self {
        self.edited(|pod| {
            let variables = &mut pod["spec"]["containers"][1]["env"];
            if variables.is_null() {
                *variables = json!([]);
            }
            if let Some(variables) = variables.as_array_mut() {
                variables.push(json!({"name": name, "value": value}));
            }
        })
    }

    /// What it asks for, by the defaults of a mesh that sets none.
    pub fn policy(&self) -> Result<Policy> {
        let facts: PodFacts = serde_json::from_value(self.0.clone())?;
        let policy = match facts.sidecar() {
            Some(_) => Policy::of_pod(&facts, &Inputs::default()),
            None => Policy::of_ambient_pod(&facts),
        };
        policy.map_err(|errors| anyhow!("a policy of the manifest: {errors:?}"))
    }

    /// With any other change.
    #[must_use]
    pub fn edited(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.0);
        self
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A pod with a sidecar of Istio 1.28 for both families, and these annotations.
#[must_use]
pub fn manifest(name: &str, pod: &PodNet, annotations: &[(&str, &str)]) -> Manifest {
    Manifest::new(name, pod)
        .annotated(annotations)
        .dual_stack(true)
}
