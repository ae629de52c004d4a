//! Pod manifests: YAML or JSON, one or several documents in a file.

mod read;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use self::read::split;
pub use self::read::{parse_yaml, read_text};
use crate::{
    pod_ref::PodRef,
    text::{printable, shortened},
};

/// Annotation that names the pod's network namespace, for pods that come from a directory.
pub const NETNS_ANNOTATION: &str = "sidetrack.dev/netns";

/// How a pod's network namespace is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetnsRef {
    /// By its path.
    Path(PathBuf),
    /// By the pod's processes: the UID in the names of their cgroups.
    PodUid(String),
}

/// A pod and where it is written.
#[derive(Clone, Debug)]
pub struct Document {
    /// The manifest.
    pub pod: Pod,
    /// File, and document number if the file has several; or the API server.
    pub origin: String,
    /// How its network namespace is found, or why it is not known.
    pub netns: Result<NetnsRef, String>,
    /// What the label [`crate::select::LABEL`] on its namespace says.
    pub namespace_label: Option<String>,
    /// Whether the namespace is not known, or what is known of it may be out of date.
    pub unsure: bool,
}

impl Document {
    /// A pod from a file.
    fn of_file(pod: Pod, origin: String) -> Self {
        Self {
            netns: netns_ref(&pod),
            pod,
            origin,
            namespace_label: None,
            unsure: false,
        }
    }

    /// The pod's name.
    #[must_use]
    pub fn name(&self) -> PodRef {
        let meta = &self.pod.metadata;
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
pub(crate) const MOST_PODS: usize = 1024;

/// What a manifest file says: its pods, and what in it could not be used.
pub type Contents = (Vec<Document>, Vec<Problem>);

/// Reads the pods of one manifest file.
///
/// # Errors
/// If the file cannot be read or is not YAML; documents that are not pods are listed as problems.
pub fn read_file(path: &Path) -> Result<Contents> {
    parse_pods(path, &read_text(path)?)
}

/// Reads the pods of one manifest file, and the pod templates of workloads (Deployment, DaemonSet,
/// StatefulSet, ReplicaSet, Job), named after them. Documents of other kinds are passed over.
///
/// # Errors
/// As [`read_file`].
pub fn read_templates(path: &Path) -> Result<Contents> {
    parse_templates(path, &read_text(path)?)
}

/// [`read_file`] once the file is read; `path` tells JSON from YAML and is named in messages.
///
/// # Errors
/// As [`read_file`].
pub fn parse_pods(path: &Path, text: &str) -> Result<Contents> {
    parse(path, text, pods_of)
}

/// [`read_templates`] once the file is read.
///
/// # Errors
/// As [`read_file`].
pub fn parse_templates(path: &Path, text: &str) -> Result<Contents> {
    parse(path, text, |value| {
        let template = value.pointer("/spec/template").cloned();
        match (value.get("kind").and_then(Value::as_str), template) {
            (Some("Pod" | "List" | "PodList") | None, _) => pods_of(value),
            (Some(_), Some(mut template)) => {
                name_after(&value, &mut template);
                Ok(vec![pod(template)?])
            }
            (Some(_), None) => Ok(Vec::new()),
        }
    })
}

/// Gives a pod template its workload's name. A template that is no mapping, or has metadata that is
/// none, stays as it is: reading it as a Pod says what is wrong with it.
fn name_after(workload: &Value, template: &mut Value) {
    let Some(fields) = template.as_object_mut() else {
        return;
    };
    let metadata = fields.entry("metadata").or_insert(Value::Null);
    if metadata.is_null() {
        *metadata = Value::Object(serde_json::Map::new());
    }
    let Some(metadata) = metadata.as_object_mut() else {
        return;
    };
    for field in ["name", "namespace"] {
        if let Some(text) = workload["metadata"].get(field) {
            metadata.insert(field.to_owned(), text.clone());
        }
    }
}

fn parse(path: &Path, text: &str, pods_of: impl Fn(Value) -> Result<Vec<Pod>>) -> Result<Contents> {
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    let values = split(path, text)?;
    let many = values.len() > 1;
    for (value, number) in values.into_iter().zip(1..) {
        let origin = if many {
            format!("{}, document {number}", path.display())
        } else {
            path.display().to_string()
        };
        match pods_of(value) {
            Ok(pods) => documents.extend(
                pods.into_iter()
                    .map(|pod| Document::of_file(pod, origin.clone())),
            ),
            Err(error) => problems.push(Problem {
                origin,
                message: format!("{error:#}"),
            }),
        }
        if documents.len() > MOST_PODS {
            bail!("it has more than {MOST_PODS} pods; split it");
        }
    }
    Ok((documents, problems))
}

/// A Pod, or the Pods of a List as `kubectl get pods -o yaml` prints it.
fn pods_of(value: Value) -> Result<Vec<Pod>> {
    match value.get("kind").and_then(Value::as_str) {
        Some("Pod") => Ok(vec![pod(value)?]),
        Some("List" | "PodList") => {
            let items = value.get("items").and_then(Value::as_array);
            let items = items.map(Vec::as_slice).unwrap_or_default();
            if items.len() > MOST_PODS {
                bail!("the list has more than {MOST_PODS} pods; split it");
            }
            items
                .iter()
                .map(|item| match item.get("kind").and_then(Value::as_str) {
                    None | Some("Pod") => pod(item.clone()),
                    Some(other) => bail!(
                        "the list has a {}; only Pods can be enrolled",
                        printable(other)
                    ),
                })
                .collect()
        }
        Some(other) => bail!("it is a {}; write the manifest of a Pod", printable(other)),
        None => bail!("it has no kind; write the manifest of a Pod (kind: Pod)"),
    }
}

fn pod(value: Value) -> Result<Pod> {
    let mut pod: Pod = serde_json::from_value(value).map_err(|error| {
        let text = error.to_string();
        // By far the most common mistake, and the message names no field.
        let cure = if text.contains("expected a string") {
            "; values of annotations, labels and variables are strings: put numbers, true and false in quotes"
        } else {
            ""
        };
        anyhow!("not a valid Pod: {}{cure}", printable(&text))
    })?;
    let meta = &mut pod.metadata;
    let namespace = meta.namespace.get_or_insert_with(|| "default".to_owned());
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        bail!("the Pod has no metadata.name");
    }
    for (field, text, longest) in [("name", name, 253), ("namespace", namespace, 63)] {
        if !is_name(text, longest) {
            bail!(
                "metadata.{field} is {:?}; write what Kubernetes takes for one: up to {longest} \
                 lower-case letters, digits, '-' and '.', the first and last no '-' or '.'",
                shortened(text)
            );
        }
    }
    Ok(pod)
}

fn netns_ref(pod: &Pod) -> Result<NetnsRef, String> {
    let annotations = pod.metadata.annotations.as_ref();
    match annotations
        .and_then(|all| all.get(NETNS_ANNOTATION))
        .map(String::as_str)
    {
        Some(path) if path.starts_with('/') => Ok(NetnsRef::Path(path.into())),
        Some(path) => Err(format!(
            "annotation {NETNS_ANNOTATION} is {path:?}: write an absolute path such as /run/netns/NAME"
        )),
        None => Err(format!(
            "annotation {NETNS_ANNOTATION} is missing: write the path of the pod's network namespace, such as /run/netns/NAME"
        )),
    }
}

/// Whether it can be a name in Kubernetes: the kernel's maps have room for these, and messages and
/// commands, which write NAMESPACE/NAME, can show and take them.
#[must_use]
pub fn is_name(text: &str, longest: usize) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= longest
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes
            .iter()
            .all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'.'))
}

#[cfg(test)]
mod tests;
