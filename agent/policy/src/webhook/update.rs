//! A pod whose init container was replaced, and whose manifest is applied again: the manifest still has it, and the API
//! refuses updates that add an init container. So it gets the init containers that the pod has.
//!
//! Invariant: each container of either pod is in the patch at most once, as it was sent, so that the patch is no
//! longer than both pods together.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    patch::add_record,
    pod::{self, ContainerText, PodText},
    validation::VALIDATION,
};
use crate::{names::REPLACED, record::ANNOTATION};

/// The most that a patch may have: containers of a pod that the API accepts, and a record.
const MAX_PATCH_BYTES: usize = 512 << 10;

/// What becomes of an update.
#[derive(Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is fine as it is, or is not about such a pod.
    Unchanged,
    /// It cannot be changed; why.
    Refused(String),
    /// The JSON patch.
    Patch(Vec<u8>),
}

/// The operation that sets all init containers.
#[derive(Serialize)]
struct Replace<'a> {
    op: &'static str,
    path: &'static str,
    value: Vec<&'a RawValue>,
}

/// Evaluates an update from the text of the pod before it, and the pod that is sent.
pub fn restore(old: &str, new: &PodText<'_>) -> Restored {
    let record = |pod: &PodText<'_>| pod.annotations()?.get(ANNOTATION).cloned();
    // What cannot be read is none of the webhook's pods.
    let Ok(old) = pod::read(old) else {
        return Restored::Unchanged;
    };
    let Some(recorded) = record(&old) else {
        return Restored::Unchanged;
    };
    let (there, given) = (old.init_containers(), new.init_containers());
    let (Some(is_there), Some(by_name)) = (by_name(there), by_name(given)) else {
        return Restored::Refused(
            "two init containers have one name, or one has none; correct the manifest".to_owned(),
        );
    };
    let removed = REPLACED.into_iter().find(|name| by_name.contains_key(name));
    let Some(removed) = removed.filter(|name| !is_there.contains_key(name)) else {
        return Restored::Unchanged;
    };
    if !is_there.contains_key(VALIDATION) {
        return Restored::Unchanged;
    }
    // Other init containers that the pod has not: the API says so, and better.
    let mut names = by_name.keys().copied();
    if !names.all(|name| name == removed || is_there.contains_key(name)) {
        return Restored::Unchanged;
    }
    // In the pod's order, which must not change; what is updated stays.
    let all = there.iter().map(|container| {
        let updated = by_name.get(&*container.name);
        updated.copied().unwrap_or(container.text)
    });
    let replace = Replace {
        op: "replace",
        path: "/spec/initContainers",
        value: all.collect(),
    };
    let is_kept = record(new).as_ref() == Some(&recorded);
    let add = (!is_kept).then(|| add_record(new.annotations().is_some(), recorded));
    let patch = match &add {
        Some(add) => serde_json::to_vec(&(&replace, add)),
        None => serde_json::to_vec(&[&replace]),
    };
    match patch {
        Ok(patch) if patch.len() <= MAX_PATCH_BYTES => Restored::Patch(patch),
        Ok(_) => Restored::Refused(format!(
            "its init containers have more than {} KiB",
            MAX_PATCH_BYTES >> 10
        )),
        Err(error) => Restored::Refused(error.to_string()),
    }
}

/// Containers by their names; `None` if a name is empty or not the only one.
fn by_name<'a>(containers: &'a [ContainerText<'_>]) -> Option<HashMap<&'a str, &'a RawValue>> {
    let mut by_name = HashMap::with_capacity(containers.len());
    for ContainerText { name, text } in containers {
        if name.is_empty() || by_name.insert(&**name, *text).is_some() {
            return None;
        }
    }
    Some(by_name)
}

#[cfg(test)]
mod tests;
