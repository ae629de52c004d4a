//! The facts that are kept of objects, and what they may take.
//!
//! Invariant: however many pods there are, with whatever annotations and arguments, their facts take at most
//! [`MAX_NODE`] bytes, and for each pod [`SMALL`] bytes.

use std::{collections::BTreeMap, sync::Arc};

use sidetrack_policy::facts::{Meta, ObjectFacts, PodFacts, Share};

/// What the facts of all pods may take, in bytes.
pub(super) const MAX_NODE: usize = 32 << 20;
/// What the facts of the pods of a namespace may take, in bytes.
pub(super) const MAX_NAMESPACE: usize = 8 << 20;
/// Facts up to this many bytes are always kept. Nearly every pod's are.
pub(super) const SMALL: usize = 4 << 10;

/// An object of which facts are kept.
pub trait Kept: Sized {
    /// Its metadata.
    fn meta(&self) -> &Meta;
    /// Whether both are the same but for their versions.
    fn is_same(&self, other: &Self) -> bool;
    /// About how many bytes count for a share.
    fn size(&self) -> usize;
    /// Whether a share of others has kept values away.
    fn is_reduced(&self) -> bool;
    /// The object without its longest values.
    fn beyond(self, share: Share) -> Self;
}

impl Kept for ObjectFacts {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn is_same(&self, other: &Self) -> bool {
        self.meta.is_same(&other.meta)
    }

    /// Without annotations they are small.
    fn size(&self) -> usize {
        0
    }

    fn is_reduced(&self) -> bool {
        false
    }

    fn beyond(self, _: Share) -> Self {
        self
    }
}

impl Kept for PodFacts {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is_same(other)
    }

    fn size(&self) -> usize {
        match self.kept() {
            0..=SMALL => 0,
            kept => kept,
        }
    }

    fn is_reduced(&self) -> bool {
        self.excess()
            .is_some_and(|excess| excess.share != Share::Pod)
    }

    fn beyond(self, share: Share) -> Self {
        self.beyond(share)
    }
}

/// Objects of one kind, by namespace and name.
#[derive(Debug)]
pub(super) struct Objects<K> {
    by_name: BTreeMap<(String, String), Arc<K>>,
    by_namespace: BTreeMap<String, usize>,
    node: usize,
    /// How many objects are reduced.
    reduced: usize,
    has_room: bool,
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_namespace: BTreeMap::new(),
            node: 0,
            reduced: 0,
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

    pub(super) fn take_has_room(&mut self) -> bool {
        std::mem::take(&mut self.has_room) && self.reduced > 0
    }
}

impl<K: Kept> Objects<K> {
    /// Keeps an object in place of another with its name, as far as there is room.
    pub(super) fn insert(&mut self, object: K) -> Arc<K> {
        let key = key(object.meta());
        let (before, had_room) = (self.node, self.has_room);
        self.remove(&key);
        let size = object.size();
        let of_namespace = self.by_namespace.get(&key.0).copied().unwrap_or_default();
        let object = if size > 0 && of_namespace + size > MAX_NAMESPACE {
            object.beyond(Share::Namespace(MAX_NAMESPACE))
        } else if size > 0 && self.node + size > MAX_NODE {
            object.beyond(Share::Node(MAX_NODE))
        } else {
            object
        };
        let size = object.size();
        self.node += size;
        *self.by_namespace.entry(key.0.clone()).or_default() += size;
        self.reduced += usize::from(object.is_reduced());
        self.has_room = had_room || self.node < before;
        let object = Arc::new(object);
        self.by_name.insert(key, Arc::clone(&object));
        object
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, key: &(String, String)) -> bool {
        let Some(object) = self.by_name.remove(key) else {
            return false;
        };
        let size = object.size();
        self.node -= size;
        if let Some(of_namespace) = self.by_namespace.get_mut(&key.0) {
            *of_namespace -= size;
            if *of_namespace == 0 {
                self.by_namespace.remove(&key.0);
            }
        }
        self.reduced -= usize::from(object.is_reduced());
        self.has_room |= size > 0;
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
