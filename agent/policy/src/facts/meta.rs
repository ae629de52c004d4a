//! Metadata of objects.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    Annotations, Labels, bounded, cut_long,
    read::{Node, Shape, fields, read_into},
};

/// `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Its name.
    pub name: Option<String>,
    /// What the API server makes the name from.
    pub generate_name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// The UID that the API server gave.
    pub uid: Option<String>,
    /// The version of the object.
    pub resource_version: Option<String>,
    deleted: Deleted,
    /// Labels that select, or set the policy.
    pub labels: Labels,
    /// Annotations that select, or set the policy.
    pub annotations: Annotations,
}

/// Whether there is a `deletionTimestamp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deleted(bool);

/// An object of which the metadata counts, without annotations but that of an agent's DaemonSet, and of a RuntimeClass its
/// handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectFacts {
    /// `metadata`.
    pub meta: Meta,
    /// `handler`: the configuration of the container runtime that runs the pods of a class.
    pub handler: Option<String>,
    /// [`OPEN_GATE`](crate::gate::OPEN_GATE). None of objects without a namespace, of which there are many.
    pub open_gate: Option<String>,
}

impl Meta {
    /// `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}/{}", part(&self.namespace), part(&self.name))
    }

    /// Whether the object is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.deleted.0
    }

    /// Whether both are the same but for their versions.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let Self {
            name,
            generate_name: _,
            namespace,
            uid,
            resource_version: _,
            deleted,
            labels,
            annotations,
        } = self;
        *name == other.name
            && *namespace == other.namespace
            && *uid == other.uid
            && *deleted == other.deleted
            && *labels == other.labels
            && *annotations == other.annotations
    }
}

bounded! { Meta { name, generate_name, namespace, uid, resource_version; labels, annotations } }

fields! { Meta {
    "name" => name,
    "generateName" => generate_name,
    "namespace" => namespace,
    "uid" => uid,
    "resourceVersion" => resource_version,
    "deletionTimestamp" => deleted,
    "labels" => labels,
    "annotations" => annotations,
} }

impl<'de> Deserialize<'de> for ObjectFacts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Self::default();
        match read_into(&mut object, deserializer)? {
            Some(problem) => Err(D::Error::custom(problem)),
            None => {
                let annotations = std::mem::take(&mut object.meta.annotations);
                object.open_gate = annotations
                    .open_gate
                    .filter(|_| object.meta.namespace.is_some());
                // The annotation is read whole, as the plugin reads it: it may name many nodes.
                cut_long(&mut object.handler);
                Ok(object)
            }
        }
    }
}

fields! { ObjectFacts {
    "metadata" => meta,
    "handler" => handler,
} }

impl Node for Deleted {
    fn shape(&self) -> Shape {
        Shape::OptionalText
    }

    fn text(&mut self, _text: &str) {
        self.0 = true;
    }
}
