//! A document's object as pods.

use anyhow::{Result, anyhow, bail};

use super::{
    MAX_PODS, NETNS_ANNOTATION, NetnsRef,
    object::{Items, Object},
};
use crate::{
    facts::PodFacts,
    pod_ref::{LONGEST_NAME, LONGEST_NAMESPACE, LONGEST_UID, is_name},
    text::{escaped, printable, shortened},
};

/// A Pod, or the Pods of a List as `kubectl get pods -o yaml` prints it.
pub(super) fn pods_of(mut object: Object) -> Result<Vec<PodFacts>> {
    match object.kind.as_deref() {
        Some("Pod") => Ok(vec![pod(object.pod())?]),
        Some("List" | "PodList") => {
            let items = items_of(object.items.take(), "list", "pods")?.into_iter();
            items
                .map(|item| match item.kind.as_deref() {
                    None | Some("Pod") => pod(item.pod()),
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

/// The items of a list within bounds.
pub(super) fn items_of(items: Option<Items>, list: &str, what: &str) -> Result<Vec<Object>> {
    let items = items.unwrap_or_default();
    if items.count > MAX_PODS {
        bail!("the {list:.40} has more than {MAX_PODS} {what}; split it");
    }
    if items.are_too_large() {
        bail!("the {list:.40} has annotations and arguments of more than 4 MiB; split it");
    }
    Ok(items.all)
}

/// Checks a pod's names.
pub(super) fn pod(pod: Result<PodFacts, String>) -> Result<PodFacts> {
    let mut pod = pod.map_err(|problem| {
        // By far the most common mistake, and the message names no field.
        let cure = if problem.ends_with("expected a string") {
            "; values of annotations, labels and variables are strings: put numbers, true and false in quotes"
        } else {
            ""
        };
        anyhow!("not a valid Pod: {problem}{cure}")
    })?;
    let meta = &mut pod.meta;
    let namespace = meta.namespace.get_or_insert_with(|| "default".to_owned());
    if meta.name.as_deref().is_none_or(str::is_empty) {
        // The API server adds five letters.
        let generated = meta.generate_name.as_deref().unwrap_or_default();
        meta.name = Some(generated.trim_end_matches(['-', '.']).to_owned());
    }
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        bail!("the Pod has no metadata.name");
    }
    let given = |text: &Option<String>| text.clone().filter(|it| !it.is_empty());
    let (uid, account) = (given(&meta.uid), given(&pod.spec.service_account_name));
    // As the API server does: ztunnel gets all four in one message of limited length.
    for (field, text, longest) in [
        ("metadata.name", Some(name), LONGEST_NAME),
        ("metadata.namespace", Some(&**namespace), LONGEST_NAMESPACE),
        ("metadata.uid", uid.as_deref(), LONGEST_UID),
        ("spec.serviceAccountName", account.as_deref(), LONGEST_NAME),
    ] {
        let Some(text) = text else { continue };
        if !is_name(text, longest) {
            bail!(
                "{field} is {:?}; write up to {longest} lower-case letters, digits, '-' \
                 and '.', with a letter or digit first and last",
                shortened(text)
            );
        }
    }
    Ok(pod)
}

/// The network namespace that an annotation names.
pub(super) fn netns_ref(pod: &PodFacts) -> Result<NetnsRef, String> {
    match pod.meta.annotations.get(NETNS_ANNOTATION) {
        // The path is in messages, and a terminal would obey these.
        Some(path) if path.starts_with('/') && escaped(path) == *path => {
            Ok(NetnsRef::Path(path.into()))
        }
        Some(path) => Err(format!(
            "annotation {NETNS_ANNOTATION} is {path:?}: write an absolute path such as /run/netns/NAME"
        )),
        None => Err(format!(
            "annotation {NETNS_ANNOTATION} is missing: write the path of the pod's network namespace, such as /run/netns/NAME"
        )),
    }
}
