//! The cluster's network, as far as it has hooks on sockets as well.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde::Serialize;

use super::Remarks;
use crate::cluster::{Cluster, list};

/// Settings of Cilium that matter.
const SETTINGS: [&str; 4] = [
    "bpf-lb-sock",
    "bpf-lb-sock-hostns-only",
    "cni-exclusive",
    "kube-proxy-replacement",
];

/// What was found.
#[derive(Debug, Serialize)]
pub struct Network {
    cilium: Cilium,
}

/// Cilium.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Cilium {
    /// Its settings may not be read.
    Unknown,
    /// It is not there.
    NotFound,
    /// Its settings.
    Settings(BTreeMap<String, String>),
}

impl Network {
    /// Looks for it.
    pub async fn find(cluster: &Cluster, remarks: &mut Remarks) -> Self {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "kube-system");
        let maps = list(api, ListParams::default()).await;
        let maps = remarks.known("the network's settings (ConfigMaps in kube-system)", maps);
        let is_ours = |map: &ConfigMap| map.name_any() == "cilium-config";
        let cilium = match maps.map(|maps| maps.into_iter().find(is_ours)) {
            None => Cilium::Unknown,
            Some(None) => Cilium::NotFound,
            Some(Some(map)) => {
                let settings = map.data.unwrap_or_default().into_iter();
                let ours = settings.filter(|(name, _)| SETTINGS.contains(&name.as_str()));
                Cilium::Settings(ours.collect())
            }
        };
        let network = Self { cilium };
        network.assess(remarks);
        network
    }

    fn assess(&self, remarks: &mut Remarks) {
        let Cilium::Settings(settings) = &self.cilium else {
            return;
        };
        let is = |name: &str, value: &str| settings.get(name).is_some_and(|set| set == value);
        let has_load_balancer = is("bpf-lb-sock", "true")
            || is("kube-proxy-replacement", "true")
            || is("kube-proxy-replacement", "strict");
        if has_load_balancer && !is("bpf-lb-sock-hostns-only", "true") {
            remarks.notes.push(
                "Cilium's socket load balancer works in pods: in pods with istio-init the sidecar sees pod addresses in place of service addresses. sidetrack's hooks run before Cilium's, and the sidecar sees service addresses".to_owned(),
            );
        }
        // Cilium's default.
        if !is("cni-exclusive", "false") {
            remarks.notes.push(
                "Cilium removes other CNI configurations: set its cni.exclusive=false before you enable sidetrack's CNI plugin (cni.enabled)".to_owned(),
            );
        }
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        match &self.cilium {
            Cilium::Unknown => vec!["Cilium: unknown".to_owned()],
            Cilium::NotFound => vec!["Cilium: not found".to_owned()],
            Cilium::Settings(settings) => {
                let settings = settings
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"));
                let settings: Vec<String> = settings.collect();
                vec![format!("Cilium: {}", settings.join(", "))]
            }
        }
    }
}
