//! The objects of all watches, merged into a listing.

mod objects;

use std::sync::Arc;

use kube::runtime::watcher::Event;
use sidetrack_policy::{
    facts::{Meta, ObjectFacts, PodFacts},
    manifest::{Document, NamespaceFacts, NetnsRef},
};
use sidetrack_reconcile::Listing;

pub use self::objects::Followed;
use self::objects::{Objects, key};
use super::watch::Object;

/// Everything known.
#[derive(Debug, Default)]
pub struct View {
    /// Pods of the node.
    pub pods: Collection<PodFacts>,
    /// Namespaces, of which only the label is kept.
    pub namespaces: Collection<ObjectFacts>,
    /// Runtime classes.
    pub classes: Collection<ObjectFacts>,
    /// Whether they could not be had at some time: nothing waits for them.
    pub classes_failed: bool,
}

impl View {
    /// `None` until pods and namespaces were read in full, and classes were or cannot be. `current`: whether the watch on namespaces works.
    pub fn listing(&self, current: bool) -> Option<Listing> {
        let pods = self.pods.known.as_ref()?;
        let namespaces = self.namespaces.known.as_ref()?;
        let classes = self.classes.known.as_ref();
        if classes.is_none() && !self.classes_failed {
            return None;
        }
        let handler_of = |pod: &PodFacts| {
            let class = pod.spec.runtime_class_name.clone()?;
            classes?.get(&(String::new(), class))?.handler.clone()
        };
        let namespace_of = |meta: &Meta| {
            let name = meta.namespace.clone()?;
            namespaces.get(&(String::new(), name))
        };
        let labels_of = |meta: &Meta| namespace_of(meta).map(|it| &it.meta.labels);
        Some(Listing {
            pods: pods
                .values()
                .map(|pod| Document {
                    namespace_label: labels_of(&pod.meta).and_then(|it| it.interception.clone()),
                    namespace_mode: labels_of(&pod.meta).and_then(|it| it.dataplane_mode.clone()),
                    namespace: match namespace_of(&pod.meta) {
                        None => NamespaceFacts::Missing,
                        Some(_) if current => NamespaceFacts::Current,
                        Some(_) => NamespaceFacts::Old,
                    },
                    runtime_handler: handler_of(pod),
                    netns: netns_ref(pod),
                    origin: "the API server".to_owned(),
                    pod: Arc::clone(pod),
                })
                .collect(),
            problems: Vec::new(),
            // Pods beyond what is followed may be there.
            complete: pods.omitted().is_none(),
            running_counts: true,
        })
    }
}

impl View {
    /// Whether pods and namespaces were read in full.
    pub fn has_pods(&self) -> bool {
        self.pods.known.is_some() && self.namespaces.known.is_some()
    }

    /// Whether there is room again for an object that exceeded a quota when it came. Says so once.
    pub fn take_has_room(&mut self) -> bool {
        let pods = self.pods.take_has_room();
        self.namespaces.take_has_room() || pods
    }
}

/// Objects of one kind.
#[derive(Debug)]
pub struct Collection<K> {
    /// As of the last full list and what came after it.
    known: Option<Objects<K>>,
    /// A list that is still being read.
    incoming: Objects<K>,
}

impl<K> Default for Collection<K> {
    fn default() -> Self {
        Self {
            known: None,
            incoming: Objects::default(),
        }
    }
}

impl<K: Followed> Collection<K> {
    fn take_has_room(&mut self) -> bool {
        self.known.as_mut().is_some_and(Objects::take_has_room)
    }

    /// The name of an object that is not followed because there are too many, if there is one.
    pub fn omitted(&self) -> Option<String> {
        let (namespace, name) = self.known.as_ref()?.omitted()?;
        Some(match namespace.is_empty() {
            true => name.clone(),
            false => format!("{namespace}/{name}"),
        })
    }

    /// Applies an event; whether anything has changed.
    pub fn take(&mut self, event: Event<K>) -> bool {
        match event {
            Event::Init => {
                self.incoming.clear();
                false
            }
            Event::InitApply(object) => {
                // Of objects that have not changed there is one copy.
                let known = self
                    .known
                    .as_ref()
                    .and_then(|known| known.get(&key(object.meta())));
                let same = known.filter(|known| known.is_same_version(&object));
                match same {
                    Some(known) => self.incoming.insert(Arc::clone(known)),
                    None => self.incoming.insert(object),
                };
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
                let key = key(object.meta());
                if known
                    .get(&key)
                    .is_some_and(|before| is_newer(before.meta(), object.meta()))
                {
                    return false;
                }
                let before = known.get(&key).cloned();
                let now = known.insert(object);
                match (before, now) {
                    (Some(before), Some(now)) => !before.is_same(&now),
                    (None, None) => false,
                    _ => true,
                }
            }
            Event::Delete(object) => {
                let Some(known) = &mut self.known else {
                    return false;
                };
                let key = key(object.meta());
                // Another object may have its name by now.
                let same = known
                    .get(&key)
                    .is_none_or(|before| before.meta().uid == object.meta().uid);
                same && known.remove(&key)
            }
        }
    }
}

/// Whether what is known of the same object is newer than what has just come. Resource versions are
/// to be compared as numbers where they are (Kubernetes 1.35, KEP-5504; etcd's always were).
fn is_newer(known: &Meta, came: &Meta) -> bool {
    let version = |meta: &Meta| meta.resource_version.as_ref()?.parse::<u128>().ok();
    let order = version(known).zip(version(came));
    known.uid == came.uid && order.is_some_and(|(known, came)| known > came)
}

impl Object for PodFacts {
    fn resource_version(&self) -> Option<&str> {
        self.meta.resource_version.as_deref()
    }
}

impl Object for ObjectFacts {
    fn resource_version(&self) -> Option<&str> {
        self.meta.resource_version.as_deref()
    }
}

/// By the UID that only the API server can choose. Static pods have another one in the names of
/// their cgroups, from an annotation that every author of a pod could write; no injector ever gives
/// them a sidecar.
fn netns_ref(pod: &PodFacts) -> Result<NetnsRef, String> {
    let uid = pod.meta.uid.clone();
    uid.map(NetnsRef::PodUid)
        .ok_or_else(|| "it has no UID".to_owned())
}

#[cfg(test)]
mod tests;
