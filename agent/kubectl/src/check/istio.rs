//! Istio: its control planes, its injectors, its CNI node agent.

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, PodTemplateSpec},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde::Serialize;
use serde_json::Value;

use super::Remarks;
use crate::cluster::{Cluster, list};

/// Label with the revision of a control plane or injector.
const REVISION: &str = "istio.io/rev";
/// ConfigMaps of the injectors begin with this name; a revision may follow.
const INJECTOR: &str = "istio-sidecar-injector";

/// What was found. `None` is unknown.
#[derive(Debug, Default, Serialize)]
pub struct Istio {
    control_planes: Option<Vec<Part>>,
    injectors: Option<Vec<Part>>,
    cni_agents: Option<Vec<Part>>,
}

/// A Deployment, DaemonSet or webhook of Istio.
#[derive(Debug, Serialize)]
struct Part {
    namespace: Option<String>,
    name: String,
    revision: Option<String>,
    version: Option<String>,
    /// `values.pilot.cni.enabled` of an injector, if it could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    cni: Option<bool>,
}

impl Istio {
    /// Looks for it.
    pub async fn find(cluster: &Cluster, remarks: &mut Remarks) -> Self {
        let client = || cluster.client.clone();
        let labels = |labels: &str| ListParams::default().labels(labels);
        let (istiods, injectors, cni) = tokio::join!(
            list::<Deployment>(Api::all(client()), labels("app=istiod")),
            list::<MutatingWebhookConfiguration>(
                Api::all(client()),
                labels("app=sidecar-injector")
            ),
            list::<DaemonSet>(Api::all(client()), labels("k8s-app=istio-cni-node")),
        );
        let control_planes = remarks.known("Istio's control planes", istiods);
        let control_planes = parts(control_planes, |istiod| {
            istiod.spec.as_ref().map(|spec| &spec.template)
        });
        let injectors = remarks.known("Istio's injectors", injectors);
        let mut injectors = parts(injectors, |_| None);
        let cni_agents = remarks.known("Istio's CNI node agent", cni);
        let cni_agents = parts(cni_agents, |agent| {
            agent.spec.as_ref().map(|spec| &spec.template)
        });
        if let Some(injectors) = &mut injectors {
            read_settings(cluster, control_planes.as_deref(), injectors, remarks).await;
        }
        let istio = Self {
            control_planes,
            injectors,
            cni_agents,
        };
        istio.assess(remarks);
        istio
    }

    fn assess(&self, remarks: &mut Remarks) {
        let is_absent = |parts: &Option<Vec<Part>>| parts.as_ref().is_some_and(Vec::is_empty);
        if is_absent(&self.control_planes) && is_absent(&self.injectors) {
            remarks.notes.push(
                "no Istio was found, neither a Deployment labeled app=istiod nor an injector's webhook: sidetrack takes pods with a sidecar of Istio, Linkerd, Kuma or Consul; the table of namespaces counts those of any of them".to_owned(),
            );
        }
        for injector in self.injectors.iter().flatten() {
            let name = &injector.name;
            remarks.notes.push(match injector.cni {
                Some(true) => continue,
                Some(false) => format!(
                    "injector {name} adds istio-init to pods: set values.pilot.cni.enabled=true without Istio's CNI node agent, or enable sidetrack's webhook"
                ),
                None => format!(
                    "unknown: whether injector {name} adds istio-init to pods (values.pilot.cni.enabled); look at the init containers of a new pod"
                ),
            });
        }
        for agent in self.cni_agents.iter().flatten() {
            remarks.notes.push(format!(
                "Istio's CNI node agent {} programs iptables in new pods. sidetrack takes its place: remove it (components.cni.enabled=false) once sidetrack enrolls the pods",
                agent.full_name()
            ));
        }
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let parts = [
            ("control plane", &self.control_planes),
            ("injector", &self.injectors),
            ("CNI node agent", &self.cni_agents),
        ];
        let mut lines = Vec::new();
        for (what, parts) in parts {
            match parts {
                None => lines.push(format!("{what}: unknown")),
                Some(parts) if parts.is_empty() => lines.push(format!("{what}: none")),
                Some(parts) => {
                    lines.extend(parts.iter().map(|part| format!("{what}: {}", part.line())));
                }
            }
        }
        lines
    }
}

impl Part {
    fn of(object: &impl ResourceExt, template: Option<&PodTemplateSpec>) -> Self {
        Self {
            namespace: object.namespace(),
            name: object.name_any(),
            revision: object.labels().get(REVISION).cloned(),
            version: template.and_then(version),
            cni: None,
        }
    }

    fn full_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    fn line(&self) -> String {
        let mut line = self.full_name();
        for (what, value) in [("revision", &self.revision), ("version", &self.version)] {
            if let Some(value) = value {
                line += &format!(", {what} {value}");
            }
        }
        if let Some(cni) = self.cni {
            line += &format!(", values.pilot.cni.enabled={cni}");
        }
        line
    }
}

/// What is shown of objects, of which some have a pod template.
fn parts<K: ResourceExt>(
    objects: Option<Vec<K>>,
    template: impl Fn(&K) -> Option<&PodTemplateSpec>,
) -> Option<Vec<Part>> {
    let objects = objects?;
    let part = |object: &K| Part::of(object, template(object));
    Some(objects.iter().map(part).collect())
}

/// The tag of the first container's image.
fn version(template: &PodTemplateSpec) -> Option<String> {
    let image = template
        .spec
        .as_ref()?
        .containers
        .first()?
        .image
        .as_deref()?;
    let name = image.split('@').next()?.rsplit('/').next()?;
    name.split_once(':').map(|(_, tag)| tag.to_owned())
}

/// Reads each injector's settings from its ConfigMap, which is in the namespace of its control plane.
async fn read_settings(
    cluster: &Cluster,
    control_planes: Option<&[Part]>,
    injectors: &mut [Part],
    remarks: &mut Remarks,
) {
    let mut namespaces: Vec<&String> = control_planes
        .into_iter()
        .flatten()
        .filter_map(|istiod| istiod.namespace.as_ref())
        .collect();
    namespaces.dedup();
    for namespace in namespaces {
        let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
        let maps = list(api, ListParams::default()).await;
        let what = format!("the injectors' settings in namespace {namespace}");
        for map in remarks.known(&what, maps).into_iter().flatten() {
            let name = map.name_any();
            let Some(rest) = name.strip_prefix(INJECTOR) else {
                continue;
            };
            let revision = match rest.strip_prefix('-') {
                Some(revision) => revision,
                None if rest.is_empty() => "default",
                None => continue,
            };
            let ours = |injector: &&mut Part| {
                injector.revision.as_deref().unwrap_or("default") == revision
            };
            for injector in injectors.iter_mut().filter(ours) {
                injector.cni = cni_setting(&map);
            }
        }
    }
}

/// `values.pilot.cni.enabled`, which older charts call `istio_cni.enabled`.
fn cni_setting(map: &ConfigMap) -> Option<bool> {
    let text = map.data.as_ref()?.get("values")?;
    let values: Value = serde_json::from_str(text).ok()?;
    ["/pilot/cni/enabled", "/istio_cni/enabled"]
        .iter()
        .find_map(|path| values.pointer(path)?.as_bool())
}
