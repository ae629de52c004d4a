//! The objects of all watches, merged into a listing.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Namespace, Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{core::PartialObjectMeta, runtime::watcher::Event};

use super::watch::Object;
use sidetrack_policy::{
    manifest::{Document, NetnsRef},
    select::LABEL,
};
use sidetrack_reconcile::Listing;

/// Everything known.
#[derive(Debug, Default)]
pub struct View {
    /// Pods of the node.
    pub pods: Collection<Pod>,
    /// Namespaces, of which only the label is kept.
    pub namespaces: Collection<PartialObjectMeta<Namespace>>,
}

impl View {
    /// `None` until both were read in full. `current`: whether the watch on namespaces works.
    pub fn listing(&self, current: bool) -> Option<Listing> {
        let pods = self.pods.known.as_ref()?;
        let namespaces = self.namespaces.known.as_ref()?;
        let namespace_of = |meta: &ObjectMeta| {
            let name = meta.namespace.clone()?;
            namespaces.get(&(String::new(), name))
        };
        let label = |meta: &ObjectMeta| {
            let namespace = namespace_of(meta)?;
            namespace.metadata.labels.as_ref()?.get(LABEL).cloned()
        };
        Some(Listing {
            pods: pods
                .values()
                .map(|pod| Document {
                    namespace_label: label(&pod.metadata),
                    unsure: !current || namespace_of(&pod.metadata).is_none(),
                    netns: netns_ref(pod),
                    origin: "the API server".to_owned(),
                    pod: pod.clone(),
                })
                .collect(),
            problems: Vec::new(),
            complete: true,
            running_counts: true,
        })
    }
}

/// Objects of one kind, by namespace and name.
#[derive(Debug)]
pub struct Collection<K> {
    /// As of the last full list and what came after it.
    known: Option<BTreeMap<(String, String), K>>,
    /// A list that is still being read.
    incoming: BTreeMap<(String, String), K>,
}

impl<K> Default for Collection<K> {
    fn default() -> Self {
        Self {
            known: None,
            incoming: BTreeMap::new(),
        }
    }
}

impl<K: Kept> Collection<K> {
    /// Applies an event; whether anything has changed.
    pub fn take(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => {
                self.incoming.clear();
                false
            }
            Event::InitApply(object) => {
                let object = object.reduced();
                self.incoming.insert(key(object.meta()), object);
                false
            }
            Event::InitDone => {
                self.known = Some(std::mem::take(&mut self.incoming));
                true
            }
            Event::Apply(object) => {
                let Some(known) = &mut self.known else {
                    return false;
                };
                let object = object.reduced();
                let key = key(object.meta());
                if known
                    .get(&key)
                    .is_some_and(|before| is_newer(before.meta(), object.meta()))
                {
                    return false;
                }
                let different = known.get(&key).is_none_or(|before| !before.same(&object));
                known.insert(key, object);
                different
            }
            Event::Delete(object) => {
                let Some(known) = &mut self.known else {
                    return false;
                };
                let key = key(object.meta());
                // Another object may have its name by now.
                let same = known
                    .get(&key)
                    .is_some_and(|before| before.meta().uid == object.meta().uid);
                same && known.remove(&key).is_some()
            }
        }
    }
}

/// An object of which a part is kept.
pub trait Kept {
    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;
    /// Without the parts sidetrack does not need.
    fn reduced(self) -> Self;
    /// Whether what is kept is the same.
    fn same(&self, other: &Self) -> bool;
}

impl Kept for PartialObjectMeta<Namespace> {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn reduced(mut self) -> Self {
        self.metadata = identity(self.metadata);
        self
    }

    fn same(&self, other: &Self) -> bool {
        self.metadata.labels == other.metadata.labels
    }
}

impl Kept for Pod {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn reduced(mut self) -> Self {
        let annotations = self.metadata.annotations.take();
        self.metadata = identity(self.metadata);
        // `kubectl apply` keeps a whole manifest in one of them.
        self.metadata.annotations = annotations.map(|mut all| {
            all.remove("kubectl.kubernetes.io/last-applied-configuration");
            all
        });
        if let Some(spec) = &mut self.spec {
            *spec = k8s_openapi::api::core::v1::PodSpec {
                containers: std::mem::take(&mut spec.containers)
                    .into_iter()
                    .map(essence)
                    .collect(),
                init_containers: spec
                    .init_containers
                    .take()
                    .map(|all| all.into_iter().map(essence).collect()),
                host_network: spec.host_network,
                host_users: spec.host_users,
                ..Default::default()
            };
        }
        if let Some(status) = &mut self.status {
            *status = k8s_openapi::api::core::v1::PodStatus {
                phase: status.phase.take(),
                ..Default::default()
            };
        }
        self
    }

    fn same(&self, other: &Self) -> bool {
        self.spec == other.spec
            && self.status == other.status
            && self.metadata.uid == other.metadata.uid
            && self.metadata.labels == other.metadata.labels
            && self.metadata.annotations == other.metadata.annotations
    }
}

/// What identifies an object, and its label.
fn identity(meta: ObjectMeta) -> ObjectMeta {
    let labels = meta.labels.map(|mut labels| {
        labels.retain(|name, _| name == LABEL || name == "sidecar.istio.io/inject");
        labels
    });
    ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        labels,
        ..ObjectMeta::default()
    }
}

fn essence(container: Container) -> Container {
    Container {
        name: container.name,
        image: container.image,
        command: container.command,
        args: container.args,
        env: container.env,
        restart_policy: container.restart_policy,
        ..Container::default()
    }
}

fn key(meta: &ObjectMeta) -> (String, String) {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// Whether what is known of the same object is newer than what has just come. Resource versions are
/// to be compared as numbers where they are (Kubernetes 1.35, KEP-5504; etcd's always were).
fn is_newer(known: &ObjectMeta, came: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| meta.resource_version.as_ref()?.parse::<u128>().ok();
    let order = version(known).zip(version(came));
    known.uid == came.uid && order.is_some_and(|(known, came)| known > came)
}

impl Object for Pod {
    fn resource_version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

/// By the UID that only the API server can choose. Static pods have another one in the names of
/// their cgroups, from an annotation that every author of a pod could write; no injector ever gives
/// them a sidecar.
fn netns_ref(pod: &Pod) -> Result<NetnsRef, String> {
    let uid = pod.metadata.uid.clone();
    uid.map(NetnsRef::PodUid)
        .ok_or_else(|| "it has no UID".to_owned())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher::Event;

    use super::Collection;

    fn pod(uid: &str, version: &str, label: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "a", "namespace": "b", "uid": uid, "resourceVersion": version,
                "labels": {"sidetrack.dev/interception": label, "app": "x"},
            },
            "spec": {"containers": [{"name": "app", "image": "i", "tty": true}], "nodeName": "n"},
        }))
        .unwrap()
    }

    fn label(pods: &Collection<Pod>) -> Option<String> {
        let pod = pods.known.as_ref()?.values().next()?;
        Some(pod.metadata.labels.as_ref()?["sidetrack.dev/interception"].clone())
    }

    #[test]
    fn events_out_of_order_and_twice() {
        let mut pods = Collection::default();
        assert!(!pods.take(Event::Init));
        assert!(!pods.take(Event::InitApply(pod("1", "9", "old"))));
        assert!(pods.known.is_none(), "not before the list is complete");
        assert!(pods.take(Event::InitDone));
        assert!(pods.take(Event::Apply(pod("1", "11", "new"))));
        assert!(!pods.take(Event::Apply(pod("1", "11", "new"))), "twice");
        assert!(!pods.take(Event::Apply(pod("1", "10", "old"))), "late");
        assert_eq!(label(&pods).as_deref(), Some("new"));
        // Deleted and created anew while no watch was open; the deletion comes last.
        assert!(pods.take(Event::Apply(pod("2", "5", "other"))));
        assert!(!pods.take(Event::Delete(pod("1", "4", "new"))));
        assert_eq!(label(&pods).as_deref(), Some("other"));
        assert!(pods.take(Event::Delete(pod("2", "6", "other"))));
        // A list that does not have it any more.
        pods.take(Event::Apply(pod("3", "7", "x")));
        pods.take(Event::Init);
        assert_eq!(label(&pods).as_deref(), Some("x"), "it stays meanwhile");
        assert!(pods.take(Event::InitDone));
        assert_eq!(label(&pods), None);
    }

    #[test]
    fn little_is_kept() {
        let mut pods = Collection::default();
        pods.take(Event::InitApply(pod("1", "1", "x")));
        pods.take(Event::InitDone);
        let kept = serde_json::to_value(pods.known.unwrap().values().next().unwrap()).unwrap();
        assert_eq!(kept["metadata"]["labels"]["app"], serde_json::Value::Null);
        assert_eq!(
            kept["spec"]["containers"][0]["tty"],
            serde_json::Value::Null
        );
        assert_eq!(kept["spec"]["containers"][0]["image"], "i");
    }
}
