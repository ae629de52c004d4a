//! Pod manifests: YAML or JSON, one or several documents in a file.

mod object;
mod pods;
mod read;
mod templates;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Result, bail};
use serde_json::Value;

use self::{
    object::Object,
    pods::{netns_ref, pods_of},
    read::{is_json, split},
};
pub use self::{
    read::{MAX_NODES, parse_yaml, read_text},
    templates::{parse_templates, read_templates, read_templates_from},
};
pub use crate::names::NETNS as NETNS_ANNOTATION;
use crate::{facts::PodFacts, pod_ref::PodRef};

/// How a pod's network namespace is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetnsRef {
    /// By its path.
    Path(PathBuf),
    /// By the pod's processes: the UID in the names of their cgroups.
    PodUid(String),
}

/// A pod and where it comes from.
#[derive(Clone, Debug)]
pub struct Document {
    /// Its facts.
    pub pod: Arc<PodFacts>,
    /// File, and document number if the file has several; or the API server.
    pub origin: String,
    /// How its network namespace is found, or why it cannot be.
    pub netns: Result<NetnsRef, String>,
    /// The value of label [`crate::select::LABEL`] on its namespace.
    pub namespace_label: Option<String>,
    /// The value of label `istio.io/dataplane-mode` on its namespace.
    pub namespace_mode: Option<String>,
    /// What these two are worth.
    pub namespace: NamespaceFacts,
    /// The handler of its runtime class, if that is known.
    pub runtime_handler: Option<String>,
}

/// What the labels of a pod's namespace are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceFacts {
    /// They are its labels.
    Current,
    /// They may be out of date.
    Old,
    /// The namespace is not known yet, or is gone.
    Missing,
}

impl Document {
    /// A pod from a file.
    fn of_file(pod: PodFacts, origin: String) -> Self {
        Self {
            netns: netns_ref(&pod),
            pod: Arc::new(pod),
            origin,
            namespace_label: None,
            namespace_mode: None,
            runtime_handler: None,
            namespace: NamespaceFacts::Current,
        }
    }

    /// The pod's name.
    #[must_use]
    pub fn name(&self) -> PodRef {
        let meta = &self.pod.meta;
        PodRef {
            namespace: meta
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

/// Something that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// File, and document number if the file has several.
    pub origin: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// How many documents a file may have, and how many pods. As JSON, which needs few bytes for a
/// Pod that needs a kilobyte, there would be room for 160,000; YAML's reader stops at as many
/// documents by itself.
pub(crate) const MAX_PODS: usize = 1024;

/// The contents of a manifest file: its pods, and the problems in it.
pub type Contents = (Vec<Document>, Vec<Problem>);

/// The pods of one manifest file, by its text; `path` selects JSON or YAML and is named in messages.
///
/// # Errors
/// If the text is not JSON or YAML; documents that are not pods are listed as problems.
pub fn parse_pods(path: &Path, text: &str) -> Result<Contents> {
    parse(&path.display().to_string(), is_json(path), text, pods_of)
}

fn parse(
    origin: &str,
    is_json: bool,
    text: &str,
    pods_of: impl Fn(Object) -> Result<Vec<PodFacts>>,
) -> Result<Contents> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    let objects = split(is_json, text)?;
    let many = objects.len() > 1;
    for (object, number) in objects.into_iter().zip(1..) {
        let origin = if many {
            format!("{origin}, document {number}")
        } else {
            origin.to_owned()
        };
        match pods_of(object) {
            Ok(pods) => documents.extend(
                pods.into_iter()
                    .map(|pod| Document::of_file(pod, origin.clone())),
            ),
            Err(error) => problems.push(Problem {
                origin,
                message: format!("{error:#}"),
            }),
        }
        if documents.len() > MAX_PODS {
            bail!("it has more than {MAX_PODS} pods; split it");
        }
    }
    Ok((documents, problems))
}

/// A value as an annotation would have it; lists may be written as lists.
pub(crate) fn words(value: &Value) -> Result<String, &'static str> {
    match value {
        Value::Null => Err("has no value; write \"\" if you mean none"),
        Value::Bool(value) => Ok(value.to_string()),
        // 1.20 has become 1.2 by now.
        Value::Number(value) if value.is_f64() => Err("is a number with a point; put it in quotes"),
        Value::Number(value) => Ok(value.to_string()),
        Value::String(value) => Ok(value.clone()),
        Value::Array(values) => {
            let words = values.iter().map(|value| match value {
                Value::Array(_) => Err("is a list of lists"),
                value => words(value),
            });
            Ok(words.collect::<Result<Vec<_>, _>>()?.join(","))
        }
        Value::Object(_) => Err("is neither a value nor a list of values"),
    }
}

#[cfg(test)]
mod tests;
