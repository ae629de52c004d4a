//! A pod whose istio-init was replaced, and whose manifest is applied again: the manifest still has istio-init, and
//! the API refuses updates that add an init container. So it gets the init containers that the pod has.

use json_patch::{Patch, PatchOperation, ReplaceOperation};
use serde_json::Value;

use super::{
    patch::{add_record, pointer},
    validation::VALIDATION,
};
use crate::record::{ANNOTATION, ISTIO_INIT};

/// The patch for an update; `None` if the update is fine as it is, or is not about such a pod.
pub fn restore(old: &Value, new: &Value) -> Option<Patch> {
    let record = old["metadata"]["annotations"][ANNOTATION].as_str()?;
    let (there, given) = (containers(old)?, containers(new)?);
    let is_replaced = named(there, VALIDATION).is_some() && named(there, ISTIO_INIT).is_none();
    if !is_replaced || named(given, ISTIO_INIT).is_none() {
        return None;
    }
    // Other init containers that the pod has not: the API says so, and better.
    let is_known = |container: &Value| {
        let name = container["name"].as_str().unwrap_or_default();
        name == ISTIO_INIT || named(there, name).is_some()
    };
    if !given.iter().all(is_known) {
        return None;
    }
    // In the pod's order, which must not change; what is updated stays.
    let all = there.iter().map(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        named(given, name).unwrap_or(container).clone()
    });
    let mut operations = vec![PatchOperation::Replace(ReplaceOperation {
        path: pointer(["spec", "initContainers"]),
        value: all.collect(),
    })];
    if new["metadata"]["annotations"][ANNOTATION] != *record {
        let has_annotations = new["metadata"]["annotations"].is_object();
        operations.push(add_record(has_annotations, record.to_owned()));
    }
    Some(Patch(operations))
}

fn containers(pod: &Value) -> Option<&Vec<Value>> {
    pod["spec"]["initContainers"].as_array()
}

fn named<'a>(containers: &'a [Value], name: &str) -> Option<&'a Value> {
    containers
        .iter()
        .find(|container| container["name"] == name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::restore;
    use crate::record::ANNOTATION;

    fn pod(names: &[&str], image: &str) -> Value {
        let containers = names
            .iter()
            .map(|name| json!({"name": name, "image": image}));
        json!({"metadata": {}, "spec": {"initContainers": containers.collect::<Value>()}})
    }

    fn changed(names: &[&str], image: &str) -> Value {
        let mut pod = pod(names, image);
        pod["metadata"] = json!({"annotations": {ANNOTATION: "{}"}});
        pod
    }

    fn updated(old: &Value, new: &Value) -> Option<Value> {
        let patch = restore(old, new)?;
        let mut new = new.clone();
        json_patch::patch(&mut new, &patch).unwrap();
        Some(new)
    }

    #[test]
    fn a_manifest_that_is_applied_again_changes_nothing() {
        let old = changed(&["sidetrack-validation", "other"], "a");
        for new in [
            pod(&["istio-init", "other"], "a"),
            pod(&["istio-init", "other", "sidetrack-validation"], "a"),
            changed(&["istio-init", "other"], "a"),
        ] {
            assert_eq!(updated(&old, &new).unwrap(), old, "{new}");
        }
    }

    #[test]
    fn what_the_update_is_about_stays() {
        let old = changed(&["sidetrack-validation", "other"], "a");
        let new = updated(&old, &pod(&["istio-init", "other"], "b")).unwrap();
        assert_eq!(new["spec"]["initContainers"][0]["image"], "a");
        assert_eq!(new["spec"]["initContainers"][1]["image"], "b");
    }

    #[test]
    fn other_pods_are_left_alone() {
        let old = changed(&["sidetrack-validation"], "a");
        for (old, new) in [
            (&old, pod(&["sidetrack-validation"], "a")),
            (&old, pod(&["istio-init", "new"], "a")),
            (&old, json!(null)),
            (&old, json!({"spec": {"initContainers": "x"}})),
            (&pod(&["istio-init"], "a"), pod(&["istio-init"], "b")),
            (&json!([]), pod(&["istio-init"], "a")),
        ] {
            assert!(restore(old, &new).is_none(), "{new}");
        }
    }
}
