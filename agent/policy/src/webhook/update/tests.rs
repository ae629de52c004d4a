//! Manifests that are applied again.

use std::time::{Duration, Instant};

use json_patch::Patch;
use serde_json::{Value, json};

use super::{MAX_PATCH_BYTES, Restored, restore};
use crate::{record::ANNOTATION, webhook::pod as text};

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

fn restored(old: &Value, new: &Value) -> Restored {
    let new = new.to_string();
    restore(&old.to_string(), &text::read(&new).expect("a pod"))
}

fn updated(old: &Value, new: &Value) -> Value {
    let Restored::Patch(patch) = restored(old, new) else {
        panic!("no patch for {new}");
    };
    let patch: Patch = serde_json::from_slice(&patch).expect("a JSON patch");
    let mut new = new.clone();
    json_patch::patch(&mut new, &patch).expect("a patch that fits");
    new
}

#[test]
fn a_manifest_that_is_applied_again_changes_nothing() {
    let old = changed(&["sidetrack-validation", "other"], "a");
    for new in [
        pod(&["istio-init", "other"], "a"),
        pod(&["istio-init", "other", "sidetrack-validation"], "a"),
        changed(&["istio-init", "other"], "a"),
    ] {
        assert_eq!(updated(&old, &new), old, "{new}");
    }
}

#[test]
fn what_the_update_is_about_stays() {
    let old = changed(&["sidetrack-validation", "other"], "a");
    let mut new = pod(&["istio-init", "other"], "b");
    // A field of a newer Kubernetes.
    new["spec"]["initContainers"][1]["future"] = json!({"kept": [1, 2.50]});
    let updated = updated(&old, &new);
    let containers = &updated["spec"]["initContainers"];
    assert_eq!(containers[0]["image"], "a");
    assert_eq!(containers[1], new["spec"]["initContainers"][1]);
}

#[test]
fn other_pods_stay_unchanged() {
    let old = changed(&["sidetrack-validation"], "a");
    for (old, new) in [
        (&old, pod(&["sidetrack-validation"], "a")),
        (&old, pod(&["istio-init", "new"], "a")),
        (&json!(null), pod(&["istio-init"], "a")),
        (
            &json!({"spec": {"initContainers": "x"}}),
            pod(&["istio-init"], "a"),
        ),
        (&pod(&["istio-init"], "a"), pod(&["istio-init"], "b")),
        (&json!([]), pod(&["istio-init"], "a")),
    ] {
        assert_eq!(restored(old, &new), Restored::Unchanged, "{new}");
    }
}

/// Each of the pod's containers would otherwise become a copy of the one that was sent.
#[test]
fn containers_of_one_name_or_of_none_are_refused() {
    for (there, given) in [
        (["sidetrack-validation", "a", "a"], ["istio-init", "a", "b"]),
        (["sidetrack-validation", "", "a"], ["istio-init", "a", "a"]),
        (
            ["sidetrack-validation", "a", "b"],
            ["istio-init", "istio-init", "b"],
        ),
    ] {
        let restored = restored(&changed(&there, "a"), &pod(&given, "a"));
        assert!(matches!(restored, Restored::Refused(_)), "{restored:?}");
    }
}

#[test]
fn what_is_too_much_is_refused_or_unchanged() {
    let image = "x".repeat(MAX_PATCH_BYTES);
    let old = changed(&["sidetrack-validation", "a"], "a");
    let long = restored(&old, &pod(&["istio-init", "a"], &image));
    assert!(matches!(long, Restored::Refused(_)), "{long:?}");
    let names: Vec<String> = (0..1001).map(|number| format!("n{number}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("sidetrack-validation");
    let many = changed(&names, "a");
    let new = pod(&["istio-init"], "a");
    assert_eq!(restored(&many, &new), Restored::Unchanged);
}

/// As long as a request may be: it takes time in proportion.
#[test]
fn pods_of_a_megabyte_each() {
    let names: Vec<String> = (0..990).map(|number| format!("n{number}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.push("sidetrack-validation");
    let old = changed(&names, &"x".repeat(1000));
    names.push("istio-init");
    let new = pod(&names, &"y".repeat(1000));
    let start = Instant::now();
    assert!(matches!(restored(&old, &new), Restored::Refused(_)));
    assert!(start.elapsed() < Duration::from_secs(5));
}
