//! Pod templates of workloads, for commands that show what a pod made from one would get.

use std::{io::Read, path::Path};

use anyhow::Result;

use super::{
    Contents,
    object::Object,
    parse,
    pods::{items_of, pod},
    pods_of,
    read::{is_json, read_bounded, read_text},
};
use crate::facts::PodFacts;

/// What messages name as the origin of documents that were piped in.
const STDIN: &str = "stdin";

/// Reads the pods of one manifest file, and the pod templates of workloads, named after them. Documents of
/// other kinds are passed over.
///
/// # Errors
/// As [`super::parse_pods`], and if the file cannot be read.
pub fn read_templates(path: &Path) -> Result<Contents> {
    parse_templates(path, &read_text(path)?)
}

/// [`read_templates`] from standard input; JSON is recognized by how it begins.
///
/// # Errors
/// As [`super::parse_pods`], and if the file cannot be read.
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
/// As [`super::parse_pods`], and if the file cannot be read.
pub fn parse_templates(path: &Path, text: &str) -> Result<Contents> {
    let origin = path.display().to_string();
    parse(&origin, is_json(path), text, templates_of)
}

/// The pods and templates of a document.
fn templates_of(mut object: Object) -> Result<Vec<PodFacts>> {
    let Some(kind) = object.kind.take() else {
        return pods_of(object);
    };
    match kind.strip_suffix("List") {
        // Items of a List name their kinds; a pod may omit it.
        Some("") => {
            let items = items_of(object.items, "list", "objects")?.into_iter();
            let pods = items.map(|mut item| match item.kind.take().as_deref() {
                None | Some("Pod") => Ok(vec![pod(item.pod())?]),
                Some(kind) => template_of(kind, item),
            });
            Ok(pods.collect::<Result<Vec<_>>>()?.concat())
        }
        // Items of a list of one kind, such as DeploymentList, need not name it.
        Some(of) if of != "Pod" && object.items.is_some() => {
            let items = items_of(object.items, &kind, "objects")?.into_iter();
            let pods = items.map(|item| template_of(of, item));
            Ok(pods.collect::<Result<Vec<_>>>()?.concat())
        }
        _ if matches!(&*kind, "Pod" | "PodList") => {
            object.kind = Some(kind);
            pods_of(object)
        }
        _ => template_of(&kind, object),
    }
}

/// The template of a workload; nothing of another object.
fn template_of(kind: &str, object: Object) -> Result<Vec<PodFacts>> {
    object.template(kind).map(pod).into_iter().collect()
}
