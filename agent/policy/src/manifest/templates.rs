//! Pod templates of workloads, for commands that show what a pod made from one would get.

use std::{io::Read, path::Path};

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{
    Contents, MOST_PODS, parse,
    pods::pod,
    pods_of,
    read::{is_json, read_bounded, read_text},
};

/// What messages name as the origin of documents that were piped in.
const STDIN: &str = "stdin";

/// Reads the pods of one manifest file, and the pod templates of workloads, named after them. Documents of
/// other kinds are passed over.
///
/// # Errors
/// As [`super::read_file`].
pub fn read_templates(path: &Path) -> Result<Contents> {
    parse_templates(path, &read_text(path)?)
}

/// [`read_templates`] from standard input; JSON is recognized by how it begins.
///
/// # Errors
/// As [`super::read_file`].
pub fn read_templates_from(input: impl Read) -> Result<Contents> {
    let text = read_bounded(input, true)?;
    let is_json = is_json_text(&text);
    // YAML has the lower bound.
    let text = read_bounded(text.as_bytes(), is_json)?;
    parse(STDIN, is_json, &text, templates_of)
}

/// Whether a text begins like JSON. YAML may also begin with a brace, and seldom has quotes around its keys.
fn is_json_text(text: &str) -> bool {
    let rest = text.trim_start().strip_prefix('{').map(str::trim_start);
    rest.is_some_and(|rest| rest.starts_with(['"', '}']))
}

/// [`read_templates`] once the file is read.
///
/// # Errors
/// As [`super::read_file`].
pub fn parse_templates(path: &Path, text: &str) -> Result<Contents> {
    let origin = path.display().to_string();
    parse(&origin, is_json(path), text, templates_of)
}

/// The pods and templates of a document.
fn templates_of(value: Value) -> Result<Vec<Pod>> {
    let kind = value.get("kind").and_then(Value::as_str);
    match kind {
        Some("List") => {
            let items = value.get("items").and_then(Value::as_array);
            let items = items.map(Vec::as_slice).unwrap_or_default();
            if items.len() > MOST_PODS {
                bail!("the list has more than {MOST_PODS} objects; split it");
            }
            let pods = items.iter().map(|item| item_of_list(item.clone()));
            Ok(pods.collect::<Result<Vec<_>>>()?.concat())
        }
        Some("Pod" | "PodList") | None => pods_of(value),
        Some(kind) if kind.ends_with("List") && value.get("items").is_some() => {
            typed_list(kind, &value)
        }
        Some(kind) => template_of(kind, &value),
    }
}

/// The items of a list of one kind, such as DeploymentList. They need not name their kind.
fn typed_list(kind: &str, list: &Value) -> Result<Vec<Pod>> {
    let items = list["items"].as_array().map(Vec::as_slice);
    let items = items.unwrap_or_default();
    if items.len() > MOST_PODS {
        bail!("the {kind:.40} has more than {MOST_PODS} objects; split it");
    }
    let kind = kind.trim_end_matches("List");
    let pods = items.iter().map(|item| template_of(kind, item));
    Ok(pods.collect::<Result<Vec<_>>>()?.concat())
}

/// An item of a List. A pod may omit its kind there.
fn item_of_list(item: Value) -> Result<Vec<Pod>> {
    match item.get("kind").and_then(Value::as_str) {
        None | Some("Pod") => Ok(vec![pod(item)?]),
        Some(kind) => template_of(kind, &item),
    }
}

/// The template of a workload; nothing of another object.
fn template_of(kind: &str, value: &Value) -> Result<Vec<Pod>> {
    let path = match kind {
        "CronJob" => "/spec/jobTemplate/spec/template",
        "PodTemplate" => "/template",
        // Deployment, DaemonSet, StatefulSet, ReplicaSet, Job, and workloads of other projects.
        _ => "/spec/template",
    };
    let Some(mut template) = value.pointer(path).cloned() else {
        return Ok(Vec::new());
    };
    name_after(value, &mut template);
    Ok(vec![pod(template)?])
}

/// Gives a pod template its workload's name. A template or metadata that is not a mapping stays as it
/// is: reading it as a Pod reports the error.
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
