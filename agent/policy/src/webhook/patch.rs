//! Whether a pod is changed, and the JSON patch that changes it.

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation, TestOperation,
    jsonptr::PointerBuf,
};
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::{
    Settings,
    pod::{ContainerText, PodText},
    validation::{self, VALIDATION},
};
use crate::{
    arguments::{self, Unread},
    facts::PodFacts,
    names::{InjectedNames, REPLACED, is_init_variable},
    policy::Policy,
    record::{ANNOTATION, ANNOTATIONS_MAX, ISTIO_INIT, Record},
    select::{Wanted, wanted},
    text::shortened,
};

/// Names an AppArmor profile for a container, whose name follows; the API refuses a pod that has no such container.
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Whether a pod is changed.
#[derive(Debug)]
pub enum Change {
    /// The pod needs no change.
    None,
    /// The pod opted in but cannot be changed; why.
    Refused(String),
    /// The init container that programs rules is replaced; features that are lost with it.
    Patch(Patch, Vec<String>),
}

/// Evaluates a pod; `facts` are its own.
pub fn change(pod: &PodText<'_>, facts: &PodFacts, settings: &Settings<'_>) -> Change {
    let Some(mesh) = facts.meshes().next() else {
        return Change::None;
    };
    let name = InjectedNames::of(mesh).init;
    let mut named = positions(pod.init_containers(), name);
    let Some(at) = named.next() else {
        return Change::None;
    };
    if named.next().is_some() {
        // No injector does that, and the API refuses a pod with two containers of one name.
        return Change::None;
    }
    let policy = match wanted(facts, settings.namespace_label, settings.mesh) {
        Wanted::Enrolled(policy) => policy,
        Wanted::Skipped(_) => return Change::None,
        Wanted::Rejected(reason) => return Change::Refused(reason.to_string()),
    };
    if !REPLACED.contains(&name) {
        return Change::Refused(format!(
            "{name} registers the pod as well; have {mesh} leave the rules to a CNI plugin (docs/consul.md)"
        ));
    }
    match operations(pod, at, &policy, settings.image) {
        Ok(operations) => Change::Patch(Patch(operations), policy.lost()),
        Err(reason) => Change::Refused(reason),
    }
}

fn operations(
    pod: &PodText<'_>,
    at: usize,
    policy: &Policy,
    image: &str,
) -> Result<Vec<PatchOperation>, String> {
    if is_name_used(pod) {
        return Err(format!(
            "it has a container {VALIDATION} which is no init container; rename it"
        ));
    }
    let init = pod.init_containers();
    let removed = read(&init[at])?;
    if let Some(reason) = unread(&removed) {
        return Err(reason);
    }
    let record = record(pod, &removed)?;
    // Makes the whole patch fail on any other pod than the evaluated one.
    let mut operations = vec![named(at, &removed.name)];
    let old = pointer(["spec", "initContainers", &at.to_string()]);
    let value = validation::container(policy, &removed, image)?;
    match positions(init, VALIDATION).next() {
        None => {
            operations.push(PatchOperation::Replace(ReplaceOperation {
                path: old,
                value,
            }));
        }
        // The injector was called again and has put its container back.
        Some(there) => {
            let own = read(&init[there])?;
            if json!(own.image) != value["image"] || json!(own.args) != value["args"] {
                return Err(format!(
                    "it has an init container {VALIDATION} of its own; rename it"
                ));
            }
            operations.push(named(there, VALIDATION));
            operations.push(PatchOperation::Remove(RemoveOperation { path: old }));
        }
    }
    operations.extend(annotate(pod, &removed.name, record));
    Ok(operations)
}

/// Why an istio-init stays: it may mean something that its record does not have.
fn unread(container: &Container) -> Option<String> {
    if container.name != ISTIO_INIT {
        return None;
    }
    let cannot_read = |what: String| {
        format!("{what} of {ISTIO_INIT} may change its rules and cannot be read; remove it")
    };
    let words = container.command.iter().chain(&container.args).flatten();
    match arguments::unread(words.map(String::as_str)) {
        Some(Unread::Program(program)) => {
            let program = shortened(program);
            return Some(format!(
                "{ISTIO_INIT} runs {program:?}, whose rules cannot be read: that is neither pilot-agent nor istio-iptables; have it run one of them"
            ));
        }
        Some(Unread::Word(word)) => {
            return Some(cannot_read(format!("the word {:?}", shortened(word))));
        }
        None => {}
    }
    if container.env_from.is_some() {
        return Some(cannot_read("envFrom".to_owned()));
    }
    let mut variables = container.env.iter().flatten();
    let unread = variables.find(|variable| {
        let is_expanded = variable.value.as_ref().is_some_and(|it| it.contains("$("));
        is_init_variable(&variable.name) && (is_expanded || variable.value_from.is_some())
    })?;
    Some(cannot_read(format!("variable {}", unread.name)))
}

fn read(container: &ContainerText<'_>) -> Result<Container, String> {
    let read = container.read();
    read.map_err(|error| {
        let error = shortened(&error.to_string());
        format!("init container {} cannot be read: {error}", container.name)
    })
}

/// The annotation's value, if it fits.
fn record(pod: &PodText<'_>, removed: &Container) -> Result<String, String> {
    let record = Record::of_container(removed);
    let record = serde_json::to_string(&record).map_err(|error| error.to_string())?;
    let others = pod.annotations().into_iter().flatten();
    let others = others.filter(|(name, _)| *name != ANNOTATION);
    let size: usize = others.map(|(name, value)| name.len() + value.len()).sum();
    if size + ANNOTATION.len() + record.len() > ANNOTATIONS_MAX {
        let most = ANNOTATIONS_MAX >> 10;
        return Err(format!(
            "the record of {} does not fit into an annotation: all annotations together may have {most} KiB",
            removed.name
        ));
    }
    Ok(record)
}

fn annotate(pod: &PodText<'_>, removed: &str, record: String) -> Vec<PatchOperation> {
    let annotations = pod.annotations();
    let mut operations = vec![add_record(annotations.is_some(), record)];
    let profile = format!("{APPARMOR}{removed}");
    if annotations.is_some_and(|annotations| annotations.contains_key(&profile)) {
        operations.push(PatchOperation::Remove(RemoveOperation {
            path: pointer(["metadata", "annotations", &profile]),
        }));
    }
    operations
}

/// Adds the record to a pod that has annotations or has none.
pub(super) fn add_record(has_annotations: bool, record: String) -> PatchOperation {
    PatchOperation::Add(if has_annotations {
        AddOperation {
            path: pointer(["metadata", "annotations", ANNOTATION]),
            value: Value::String(record),
        }
    } else {
        AddOperation {
            path: pointer(["metadata", "annotations"]),
            value: json!({ANNOTATION: record}),
        }
    })
}

/// The init container at a place is still the one with this name.
fn named(at: usize, name: &str) -> PatchOperation {
    PatchOperation::Test(TestOperation {
        path: pointer(["spec", "initContainers", &at.to_string(), "name"]),
        value: name.into(),
    })
}

fn positions(init: &[ContainerText<'_>], name: &str) -> impl Iterator<Item = usize> {
    let all = init.iter().enumerate();
    all.filter(move |(_, container)| container.name == name)
        .map(|(at, _)| at)
}

/// Whether an app has the validation container's name.
fn is_name_used(pod: &PodText<'_>) -> bool {
    pod.containers()
        .iter()
        .any(|container| container.name == VALIDATION)
}

pub(super) fn pointer<const N: usize>(tokens: [&str; N]) -> PointerBuf {
    PointerBuf::from_tokens(tokens)
}

#[cfg(test)]
mod tests;
