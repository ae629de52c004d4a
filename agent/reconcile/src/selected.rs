//! What is wanted of a pod, as it was read from a document. Long lists are read once and not with every listing.

use std::sync::Arc;

use sidetrack_policy::{Policy, facts::PodFacts, manifest::Document, select::Skipped};

/// What is wanted of a pod.
#[derive(Clone, Debug)]
pub(crate) enum Selected {
    /// It is to be enrolled, with this policy.
    Enrolled(Arc<Policy>),
    /// It is skipped.
    Skipped(Skipped),
    /// It should be enrolled, but cannot be, for this reason.
    Rejected(String),
}

/// A document that was read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) pod: Arc<PodFacts>,
    pub(crate) namespace_label: Option<String>,
    pub(crate) namespace_mode: Option<String>,
    pub(crate) runtime_handler: Option<String>,
    pub(crate) selected: Selected,
    /// Whether the mesh's settings have changed since. The pod has not.
    pub(crate) is_stale: bool,
}

impl Read {
    /// Whether a document leads to the same. Sources keep the facts of a pod that has not changed.
    pub(crate) fn is_of(&self, document: &Document) -> bool {
        !self.is_stale
            && Arc::ptr_eq(&self.pod, &document.pod)
            && self.namespace_label == document.namespace_label
            && self.namespace_mode == document.namespace_mode
            && self.runtime_handler == document.runtime_handler
    }
}

#[cfg(test)]
mod tests;
