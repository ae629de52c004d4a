//! Pods from a directory: Pod manifests in YAML or JSON, one or many documents a file.
//!
//! Invariant: a file that cannot be read as it is now keeps the pods it last had, so that a typing
//! error never takes a pod out of interception.

mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use nix::fcntl::OFlag;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::watch::Watch;
use crate::{
    netns::Place,
    pod::{NETNS_ANNOTATION, PodRef},
    policy::shortened,
};

/// A pod and where it is written.
#[derive(Clone, Debug)]
pub struct Document {
    /// The manifest.
    pub pod: Pod,
    /// File, and document number if the file has several; or the API server.
    pub origin: String,
    /// How its network namespace is found, or why it is not known.
    pub place: Result<Place, String>,
    /// What the label [`crate::pod::LABEL`] on its namespace says.
    pub namespace_label: Option<String>,
    /// Whether the namespace is not known, or what is known of it may be out of date.
    pub unsure: bool,
}

impl Document {
    /// A pod from a file.
    fn of_file(pod: Pod, origin: String) -> Self {
        Self {
            place: place(&pod),
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

/// The directory as it is now.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Pods; files that came first are first.
    pub pods: Vec<Document>,
    /// What could not be used.
    pub problems: Vec<Problem>,
    /// Whether every file could be read since the agent started. Only then is a pod that nobody
    /// lists known to be gone.
    pub complete: bool,
    /// Whether a pod that is not listed and still has processes counts as there. An API object may be
    /// deleted by force, or missing from a restored API server; a manifest that is removed is meant.
    pub running_counts: bool,
}

/// A directory of manifests.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: BTreeMap<PathBuf, Known>,
    seen: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// When the file first appeared: of two manifests for one pod the older stays in force.
    order: u64,
    documents: Vec<Document>,
    problems: Vec<Problem>,
    unread: bool,
}

impl Known {
    /// Takes what the file says now. A pod that is not found any more in a file that is partly
    /// unreadable, or that has been emptied (often only for a moment), keeps its last manifest.
    fn replace(&mut self, path: &Path, now: Vec<Document>, problems: Vec<Problem>) {
        let before = std::mem::replace(&mut self.documents, now);
        self.problems = problems;
        let emptied = self.documents.is_empty() && self.problems.is_empty();
        if !emptied && self.problems.is_empty() {
            return;
        }
        let found: BTreeSet<PodRef> = self.documents.iter().map(Document::name).collect();
        let missing: Vec<Document> = before
            .into_iter()
            .filter(|old| !found.contains(&old.name()))
            .collect();
        if missing.is_empty() {
            return;
        }
        let names: Vec<String> = missing.iter().map(|old| old.name().to_string()).collect();
        self.problems.push(Problem {
            origin: path.display().to_string(),
            message: format!(
                "{} cannot be read from it any more and stay as they are; to take pods out, remove the file",
                names.join(", ")
            ),
        });
        self.documents.extend(missing);
    }
}

impl Directory {
    /// A directory; it must exist.
    pub fn new(path: &Path) -> Result<Self> {
        let meta = fs::metadata(path).with_context(|| {
            format!(
                "open the pods directory {}; create it or pass another to --pods-dir",
                path.display()
            )
        })?;
        if !meta.is_dir() {
            bail!(
                "{} is not a directory; pass one to --pods-dir",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            files: BTreeMap::new(),
            seen: 0,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the directory again.
    pub fn list(&mut self) -> io::Result<Listing> {
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if is_manifest(&path) {
                present.insert(path);
            }
        }
        self.files.retain(|path, _| present.contains(path));
        for path in present {
            self.read(path);
        }
        let mut files: Vec<&Known> = self.files.values().collect();
        files.sort_by_key(|file| file.order);
        Ok(Listing {
            pods: files
                .iter()
                .flat_map(|file| file.documents.clone())
                .collect(),
            problems: files
                .iter()
                .flat_map(|file| file.problems.clone())
                .collect(),
            complete: files.iter().all(|file| !file.unread),
            running_counts: false,
        })
    }

    fn read(&mut self, path: PathBuf) {
        let seen = &mut self.seen;
        let known = self.files.entry(path.clone()).or_insert_with(|| {
            *seen += 1;
            Known {
                order: *seen,
                unread: true,
                ..Known::default()
            }
        });
        match read_file(&path) {
            Ok((documents, problems)) => {
                known.unread = !problems.is_empty() && known.unread;
                known.replace(&path, documents, problems);
            }
            Err(error) => {
                known.problems = vec![Problem {
                    origin: path.display().to_string(),
                    message: format!("{error:#}; the pods it named last stay as they are"),
                }];
            }
        }
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// How many documents a file may have, and how many pods. As JSON, which needs few bytes for a
/// Pod that needs a kilobyte, there would be room for 160,000; YAML's reader stops at as many
/// documents by itself.
const MOST_PODS: usize = 1024;

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

/// Reads a file that is one: what is no regular file, or waits for something, or does not end, would
/// hold up everything else.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    let (max_mib, cure) = if is_json(path) {
        (4, "split it")
    } else {
        // Hostile YAML takes up to 170 times its size in memory, and a second for two megabytes.
        (2, "split it, or write JSON")
    };
    let max_bytes = max_mib << 20;
    if !fs::metadata(path).context("read the file")?.is_file() {
        bail!("it is not a regular file");
    }
    let file = File::options()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .context("read the file")?;
    let mut text = String::new();
    file.take(max_bytes + 1)
        .read_to_string(&mut text)
        .context("read the file")?;
    if text.len() as u64 > max_bytes {
        bail!("it is larger than {max_mib} MiB; {cure}");
    }
    Ok(text)
}

/// The documents of a file, empty ones left out.
fn split(path: &Path, text: &str) -> Result<Vec<Value>> {
    let values = if is_json(path) {
        let values = serde_json::Deserializer::from_str(text)
            .into_iter::<Value>()
            .take(MOST_PODS + 1)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| anyhow!("not valid JSON: {error}"))?;
        if values.len() > MOST_PODS {
            bail!("it has more than {MOST_PODS} documents; split it");
        }
        values
    } else {
        parse_yaml(text)?
    };
    Ok(values
        .into_iter()
        .filter(|value| !value.is_null())
        .collect())
}

/// The documents of a YAML text.
pub(crate) fn parse_yaml<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    // We show the first line only; a picture of the place would cost time and memory.
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let text = error.to_string();
        let cure = if text.contains("budget") {
            "; split the file, or write JSON"
        } else {
            ""
        };
        anyhow!("not valid YAML: {}{cure}", printable(first_line(&text)))
    })
}

fn is_json(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension == "json")
}

fn first_line(text: &str) -> &str {
    text.lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or(text)
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

fn place(pod: &Pod) -> Result<Place, String> {
    let annotations = pod.metadata.annotations.as_ref();
    match annotations
        .and_then(|all| all.get(NETNS_ANNOTATION))
        .map(String::as_str)
    {
        Some(path) if path.starts_with('/') => Ok(Place::Path(path.into())),
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
pub(crate) fn is_name(text: &str, longest: usize) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= longest
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes
            .iter()
            .all(|byte| alphanumeric(byte) || matches!(byte, b'-' | b'.'))
}

/// Foreign text in a message: of bearable length, and nothing a terminal would obey.
fn printable(text: &str) -> String {
    let mut printable = String::new();
    for c in shortened(text).chars() {
        if c.is_control() {
            printable.extend(c.escape_default());
        } else {
            printable.push(c);
        }
    }
    printable
}

#[cfg(test)]
mod tests;
