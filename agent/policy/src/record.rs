//! The parts of an init container that its pod's policy depends on. The webhook that removes the container keeps them in
//! an annotation, from which the same policy is read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use serde::{Deserialize, Serialize};

use crate::{
    error::PolicyError,
    facts::{PodFacts, containers},
    names::is_recorded,
    text::shortened,
};

pub use crate::names::REMOVED_ISTIO_INIT as ANNOTATION;

/// Name of the init container that programs iptables.
pub const ISTIO_INIT: &str = containers::ISTIO_INIT;
/// What the API server allows for all annotations of an object together
/// (`TotalAnnotationSizeLimitB` in k8s.io/apimachinery).
pub const ANNOTATIONS_MAX: usize = 256 << 10;

/// The words and variables that [`crate::Policy::of_pod`] reads, and the image that sets the dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
// An unknown field may be part of the policy.
#[serde(deny_unknown_fields)]
pub struct Record {
    /// `command` and `args`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// Literal variables whose names begin with `ISTIO_`, and others that istio-iptables reads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

impl Record {
    /// The record of a container.
    #[must_use]
    pub fn of_container(container: &Container) -> Self {
        let words = container.command.iter().chain(&container.args).flatten();
        let mut env = BTreeMap::new();
        for variable in container.env.iter().flatten() {
            // Of two the last counts, as in the sidecar's environment.
            env.remove(&variable.name);
            if let Some(value) = &variable.value
                && is_recorded(&variable.name)
            {
                env.insert(variable.name.clone(), value.clone());
            }
        }
        Self {
            words: words.cloned().collect(),
            env,
            image: container.image.clone(),
        }
    }

    /// The record in a pod's annotation, if it has one.
    pub(crate) fn of_annotation(pod: &PodFacts) -> Result<Option<Self>, PolicyError> {
        let Some(text) = pod.meta.annotations.get(ANNOTATION) else {
            return Ok(None);
        };
        let error = |problem: String| PolicyError {
            origin: format!("annotation {ANNOTATION}"),
            value: shortened(text),
            problem,
        };
        if text.len() > ANNOTATIONS_MAX {
            let most = ANNOTATIONS_MAX >> 10;
            return Err(error(format!("it is longer than {most} KiB")));
        }
        serde_json::from_str(text).map(Some).map_err(|wrong| {
            error(format!(
                "not a record that the webhook wrote (column {}); remove the annotation, or restore the value from when {ISTIO_INIT} was removed",
                wrong.column()
            ))
        })
    }
}

#[cfg(test)]
mod tests;
