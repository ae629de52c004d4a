//! The facts that are kept of objects, and what they may take.
//!
//! Invariant: however many pods there are, with whatever annotations and arguments, their facts take at most
//! [`MAX_NODE`] bytes, and [`SMALL`] bytes for each of at most [`Followed::MAX_COUNT`] pods. Objects that have ended
//! take nothing: they are as good as deleted.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use sidetrack_policy::{
    facts::{Meta, ObjectFacts, PodFacts, Quota},
    select::is_completed,
};

/// What the facts of all pods may take, in bytes.
pub(super) const MAX_NODE: usize = 32 << 20;
/// What the facts of the pods of a namespace may take, in bytes.
pub(super) const MAX_NAMESPACE: usize = 8 << 20;
/// Facts up to this many bytes are always kept. Nearly every pod's are.
pub(super) const SMALL: usize = 4 << 10;

/// An object of which facts are kept.
pub trait Followed: Clone {
    /// How many are followed.
    const MAX_COUNT: usize;
    /// Of one namespace.
    const MAX_COUNT_OF_NAMESPACE: usize;

    /// Its metadata.
    fn meta(&self) -> &Meta;
    /// Whether both are the same but for their versions.
    fn is_same(&self, other: &Self) -> bool;
    /// Whether both are the same state of one object, with all its values.
    fn is_same_version(&self, other: &Self) -> bool {
        let version = |object: &Self| {
            let Meta {
                uid,
                resource_version,
                ..
            } = object.meta();
            Some((uid.clone()?, resource_version.clone()?))
        };
        !self.is_reduced() && version(self).is_some() && version(self) == version(other)
    }
    /// About how many bytes count for a quota.
    fn size(&self) -> usize;
    /// Whether values are missing because of a quota for several objects.
    fn is_reduced(&self) -> bool;
    /// The object without its longest values.
    fn beyond(self, quota: Quota) -> Self;
    /// Whether nothing can follow from it any more.
    fn has_ended(&self) -> bool;
}

impl Followed for ObjectFacts {
    /// Namespaces, and runtime classes. Kubernetes is tested with up to 10,000 (sig-scalability, `thresholds.md`).
    const MAX_COUNT: usize = 32_768;
    const MAX_COUNT_OF_NAMESPACE: usize = Self::MAX_COUNT;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn is_same(&self, other: &Self) -> bool {
        self.meta.is_same(&other.meta) && self.handler == other.handler
    }

    /// Without annotations they are small.
    fn size(&self) -> usize {
        0
    }

    fn is_reduced(&self) -> bool {
        false
    }

    fn beyond(self, _: Quota) -> Self {
        self
    }

    fn has_ended(&self) -> bool {
        false
    }
}

impl Followed for PodFacts {
    /// A node runs 110 pods by default (kubelet's `maxPods`), and kubelet ends those that it does not admit.
    const MAX_COUNT: usize = 4_096;
    const MAX_COUNT_OF_NAMESPACE: usize = 1_024;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is_same(other)
    }

    fn size(&self) -> usize {
        match self.bytes() {
            0..=SMALL => 0,
            bytes => bytes,
        }
    }

    fn is_reduced(&self) -> bool {
        self.excess()
            .is_some_and(|excess| excess.quota != Quota::Pod)
    }

    fn beyond(self, quota: Quota) -> Self {
        self.beyond(quota)
    }

    fn has_ended(&self) -> bool {
        is_completed(self)
    }
}

/// Objects of one kind, by namespace and name.
#[derive(Debug)]
pub(super) struct Objects<K> {
    by_name: BTreeMap<(String, String), Arc<K>>,
    by_namespace: BTreeMap<String, Sum>,
    node: Sum,
    /// How many objects are reduced.
    reduced: usize,
    /// An object that is not followed.
    omitted: Option<(String, String)>,
    has_room: bool,
}

/// What objects take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) objects: usize,
    pub(super) bytes: usize,
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_namespace: BTreeMap::new(),
            node: Sum::default(),
            reduced: 0,
            omitted: None,
            has_room: false,
        }
    }
}

impl<K> Objects<K> {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn get(&self, key: &(String, String)) -> Option<&Arc<K>> {
        self.by_name.get(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.by_name.values()
    }

    /// One of the objects for which there was no room.
    pub(super) fn omitted(&self) -> Option<&(String, String)> {
        self.omitted.as_ref()
    }

    pub(super) fn take_has_room(&mut self) -> bool {
        std::mem::take(&mut self.has_room) && (self.reduced > 0 || self.omitted.is_some())
    }
}

impl<K: Followed> Objects<K> {
    /// Keeps an object in place of another with its name, as far as there is room. Answers what is kept.
    pub(super) fn insert(&mut self, object: impl Into<Arc<K>>) -> Option<Arc<K>> {
        let mut object = object.into();
        let key = key(object.meta());
        if object.has_ended() {
            self.remove(&key);
            return None;
        }
        let (before, had_room) = (self.node.bytes, self.has_room);
        self.remove(&key);
        let of_namespace = self.of_namespace(&key.0);
        if self.node.objects >= K::MAX_COUNT || of_namespace.objects >= K::MAX_COUNT_OF_NAMESPACE {
            self.omitted = Some(key);
            self.has_room = had_room;
            return None;
        }
        let size = object.size();
        if size > 0 && of_namespace.bytes + size > MAX_NAMESPACE {
            object = Arc::new(Arc::unwrap_or_clone(object).beyond(Quota::Namespace(MAX_NAMESPACE)));
        } else if size > 0 && self.node.bytes + size > MAX_NODE {
            object = Arc::new(Arc::unwrap_or_clone(object).beyond(Quota::Node(MAX_NODE)));
        }
        let size = object.size();
        for sum in [
            &mut self.node,
            self.by_namespace.entry(key.0.clone()).or_default(),
        ] {
            sum.objects += 1;
            sum.bytes += size;
        }
        self.reduced += usize::from(object.is_reduced());
        // One that only changes leaves no room for another.
        self.has_room = had_room || self.node.bytes < before;
        self.by_name.insert(key, Arc::clone(&object));
        Some(object)
    }

    fn of_namespace(&self, namespace: &str) -> Sum {
        self.by_namespace
            .get(namespace)
            .copied()
            .unwrap_or_default()
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, key: &(String, String)) -> bool {
        // A new list says whether others were omitted.
        self.has_room |= self.omitted.as_ref() == Some(key);
        let Some(object) = self.by_name.remove(key) else {
            return false;
        };
        let size = object.size();
        self.node.objects -= 1;
        self.node.bytes -= size;
        if let Entry::Occupied(mut of_namespace) = self.by_namespace.entry(key.0.clone()) {
            let sum = of_namespace.get_mut();
            sum.objects -= 1;
            sum.bytes -= size;
            if sum.objects == 0 {
                of_namespace.remove();
            }
        }
        self.reduced -= usize::from(object.is_reduced());
        self.has_room |= size > 0 || self.omitted.is_some();
        true
    }
}

/// The name under which an object is kept.
pub(super) fn key(meta: &Meta) -> (String, String) {
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
