//! The kinds that are served, as the API names them.

use anyhow::{Result, anyhow};
use serde_json::Value;

use super::store::Resource;

impl Resource {
    /// Those that clients list.
    pub const ALL: [Self; 9] = [
        Self::Pods,
        Self::Namespaces,
        Self::DaemonSets,
        Self::ConfigMaps,
        Self::Nodes,
        Self::Deployments,
        Self::InjectorWebhooks,
        Self::Services,
        Self::RuntimeClasses,
    ];

    /// That of an object.
    pub fn of(object: &Value) -> Result<Self> {
        Self::named(object["kind"].as_str().unwrap_or_default())
    }

    /// That of a kind.
    pub fn named(kind: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|resource| resource.kind() == kind)
            .ok_or_else(|| anyhow!("no kind {kind:?}"))
    }

    /// `kind` of one object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Namespaces => "Namespace",
            Self::DaemonSets => "DaemonSet",
            Self::ConfigMaps => "ConfigMap",
            Self::Nodes => "Node",
            Self::Deployments => "Deployment",
            Self::InjectorWebhooks => "MutatingWebhookConfiguration",
            Self::Services => "Service",
            Self::RuntimeClasses => "RuntimeClass",
        }
    }

    /// API group.
    pub fn group(self) -> &'static str {
        match self {
            Self::DaemonSets | Self::Deployments => "apps",
            Self::InjectorWebhooks => "admissionregistration.k8s.io",
            Self::RuntimeClasses => "node.k8s.io",
            _ => "",
        }
    }

    /// `apiVersion` of one object.
    pub fn api_version(self) -> String {
        match self.group() {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        }
    }

    /// Its name in paths and in RBAC.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Namespaces => "namespaces",
            Self::DaemonSets => "daemonsets",
            Self::ConfigMaps => "configmaps",
            Self::Nodes => "nodes",
            Self::Deployments => "deployments",
            Self::InjectorWebhooks => "mutatingwebhookconfigurations",
            Self::Services => "services",
            Self::RuntimeClasses => "runtimeclasses",
        }
    }

    /// The paths of its lists.
    pub fn paths(self) -> Vec<String> {
        let root = match self.group() {
            "" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        let plural = self.plural();
        let all = format!("{root}/{plural}");
        match self {
            Self::Namespaces | Self::Nodes | Self::InjectorWebhooks | Self::RuntimeClasses => {
                vec![all]
            }
            _ => vec![all, format!("{root}/namespaces/{{namespace}}/{plural}")],
        }
    }
}
