//! A document's value as pods.

use anyhow::{Result, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{MOST_PODS, NETNS_ANNOTATION, NetnsRef};
use crate::text::{printable, shortened};

/// A Pod, or the Pods of a List as `kubectl get pods -o yaml` prints it.
pub(super) fn pods_of(value: Value) -> Result<Vec<Pod>> {
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

/// Reads a Pod and checks its names.
pub(super) fn pod(value: Value) -> Result<Pod> {
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
                "metadata.{field} is {:?}; write up to {longest} lower-case letters, digits, '-' \
                 and '.', with a letter or digit first and last",
                shortened(text)
            );
        }
    }
    Ok(pod)
}

/// The network namespace that an annotation names.
pub(super) fn netns_ref(pod: &Pod) -> Result<NetnsRef, String> {
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

/// Whether it is a valid name in Kubernetes. The kernel's maps have room for these, and messages and
/// commands can write them as NAMESPACE/NAME.
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
