//! What is kept of each value: which there are, what they cost, and which are cut.

use serde_json::{Value, json};

use super::{RANGES, facts};
use crate::{
    facts::{MAX_POD_BYTES, MAX_VALUE_BYTES, ObjectFacts, PodFacts},
    gate::OPEN_GATE,
    select::{INJECT, LABEL},
};

#[test]
fn pods_are_the_same_but_for_their_versions() {
    let pod = || {
        json!({
            "metadata": {
                "name": "app",
                "namespace": "shop",
                "uid": "1",
                "resourceVersion": "7",
                "labels": {LABEL: "enabled"},
                "annotations": {RANGES: "10.0.0.0/8"},
            },
            "spec": {"nodeName": "a"},
            "status": {"phase": "Running"},
        })
    };
    let changed = |pointer: &str, value: Value| {
        let mut changed = pod();
        *changed.pointer_mut(pointer).expect("a place") = value;
        let [before, after] = [facts(pod()), facts(changed)];
        assert_eq!(before.is_same(&after), after.is_same(&before), "{pointer}");
        !before.is_same(&after)
    };
    assert!(!changed("/metadata/resourceVersion", json!("8")));
    for pointer in [
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/uid",
        "/spec/nodeName",
        "/status/phase",
    ] {
        assert!(changed(pointer, json!("other")), "{pointer}");
    }
    for pointer in ["/metadata/labels", "/metadata/annotations"] {
        assert!(changed(pointer, json!({})), "{pointer}");
    }
    let mut deleted = pod();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert!(!facts(pod()).is_same(&facts(deleted)));
    let mut large = pod();
    large["metadata"]["annotations"][RANGES] = json!("1,".repeat(MAX_POD_BYTES));
    let excess = facts(large);
    assert!(excess.excess().is_some());
    assert!(!facts(pod()).is_same(&excess));
}

#[test]
fn addresses_are_read_as_many_as_a_pod_can_have() {
    let ips = |ips: Value| -> Vec<String> {
        let pod = facts(json!({"status": {"podIPs": ips}}));
        pod.status.pod_ips.iter().map(|ip| ip.to_string()).collect()
    };
    let both = json!([{"ip": "10.0.0.7"}, {"ip": "no address"}, {"ip": "fd00::7"}]);
    assert_eq!(ips(both), ["10.0.0.7", "fd00::7"]);
    let many: Vec<Value> = (0..20)
        .map(|last| json!({"ip": format!("10.0.0.{last}")}))
        .collect();
    let kept = ips(json!(many));
    assert_eq!((kept.len(), &*kept[15]), (16, "10.0.0.15"));
}

/// What is longer than any valid value takes part in the bound, and is cut beyond it.
#[test]
fn every_value_counts_and_is_cut() {
    let long = "x".repeat(MAX_POD_BYTES / 8);
    let pod = |phase: &str| {
        facts(json!({
            "metadata": {"labels": {LABEL: long, INJECT: long, "istio.io/dataplane-mode": long}},
            "spec": {
                "nodeName": long,
                "runtimeClassName": long,
                "serviceAccountName": long,
            },
            "status": {"phase": phase},
        }))
    };
    let most = pod(&long.repeat(2));
    assert_eq!((most.bytes(), most.excess()), (MAX_POD_BYTES, None));
    let more = pod(&format!("{long}{long}x"));
    assert_eq!(more.excess().map(|it| it.bytes), Some(MAX_POD_BYTES + 1));
    assert!(more.bytes() < 2000, "{}", more.bytes());
    // A valid value stays, also of the greatest length.
    let valid = "y".repeat(MAX_VALUE_BYTES);
    let pod = facts(json!({
        "metadata": {"annotations": {RANGES: "x".repeat(MAX_POD_BYTES)}},
        "spec": {"nodeName": valid},
    }));
    assert!(pod.excess().is_some());
    assert_eq!(pod.spec.node_name, Some(valid));
}

#[test]
fn the_annotation_of_the_gate_counts_for_a_pod_and_is_kept_whole_of_a_daemonset_alone() {
    let metadata = |namespace: Option<&str>| {
        json!({"metadata": {
            "name": "x", "namespace": namespace,
            "annotations": {OPEN_GATE: "x".repeat(MAX_POD_BYTES + 1)},
        }})
    };
    let pod = facts(metadata(Some("a")));
    assert!(pod.excess().is_some());
    assert!(pod.bytes() < 100, "{}", pod.bytes());
    let object = |namespace| serde_json::from_value::<ObjectFacts>(metadata(namespace)).unwrap();
    let whole = object(Some("a")).open_gate.map(|value| value.len());
    assert_eq!(whole, Some(MAX_POD_BYTES + 1));
    assert_eq!(object(None).open_gate, None);
}

#[test]
fn known_annotations_are_listed_with_their_values() {
    let pod = facts(json!({"metadata": {"annotations": {RANGES: "10.0.0.0/8", "other": "x"}}}));
    let all: Vec<_> = pod.meta.annotations.iter().collect();
    assert_eq!(all, [(RANGES, "10.0.0.0/8")]);
}

/// Of a container beyond the bound only what no valid pod has is dropped.
#[test]
fn long_images_and_variables_are_dropped() {
    const DNS: &str = "ISTIO_META_DNS_CAPTURE";
    let sidecar = |length: usize| {
        let text = "x".repeat(length);
        let pod = facts(json!({
            "metadata": {"annotations": {RANGES: "x".repeat(MAX_POD_BYTES)}},
            "spec": {"containers": [
                {"name": "istio-proxy", "image": text, "env": [{"name": DNS, "value": text}]},
            ]},
        }));
        assert!(pod.excess().is_some());
        pod.sidecar().expect("a sidecar").clone()
    };
    let valid = sidecar(MAX_VALUE_BYTES);
    assert!(valid.image.is_some() && valid.env.contains_key(DNS));
    let long = sidecar(MAX_VALUE_BYTES + 1);
    assert_eq!((long.image, long.env.len()), (None, 0));
}

/// A word costs more than its bytes, and of the sidecar only those before the first flag count.
#[test]
fn the_sidecars_first_words_count() {
    const OVERHEAD: usize = 32;
    let bytes = |args: &[&str]| {
        let pod = json!({"spec": {"containers": [{"name": "istio-proxy", "args": args}]}});
        facts(pod).bytes()
    };
    let first = "proxy".len() + "router".len() + 2 * OVERHEAD;
    assert_eq!(bytes(&["proxy", "router"]), bytes(&[]) + first);
    assert_eq!(
        bytes(&["proxy", "router", "--flag", "more"]),
        bytes(&[]) + first
    );
}

/// As the API server reads it, the last of two names counts, also if the first is of no known container.
#[test]
fn the_last_name_of_a_container_counts() {
    let pod = r#"{"spec": {"containers": [{"name": "app", "image": "x", "name": "istio-proxy"}]}}"#;
    let pod: PodFacts = serde_json::from_str(pod).expect("JSON");
    assert!(pod.sidecar().is_some());
}

#[test]
fn an_objects_name_and_end() {
    let pod = |metadata: Value| facts(json!({"metadata": metadata})).meta;
    let running = pod(json!({"name": "web", "namespace": "shop"}));
    assert_eq!(
        (&*running.full_name(), running.is_deleted()),
        ("shop/web", false)
    );
    assert!(pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})).is_deleted());
}

/// Of a namespace or DaemonSet the metadata is kept without annotations, and its version.
#[test]
fn an_objects_metadata_is_kept_without_annotations() {
    let object = json!({
        "metadata": {
            "name": "shop",
            "resourceVersion": "7",
            "labels": {LABEL: "enabled"},
            "annotations": {RANGES: "10.0.0.0/8"},
        },
    });
    let object: ObjectFacts = serde_json::from_value(object).expect("an object");
    let meta = object.meta;
    assert_eq!(
        [meta.name, meta.resource_version, meta.labels.interception].map(Option::unwrap_or_default),
        ["shop", "7", "enabled"]
    );
    assert_eq!(meta.annotations.iter().count(), 0);
    let wrong = serde_json::from_value::<ObjectFacts>(json!({"metadata": 7}));
    assert!(
        wrong
            .expect_err("no object")
            .to_string()
            .contains("expected a mapping")
    );
}

#[test]
fn every_value_of_another_type_is_named() {
    let values = [
        (json!(-1), "a number"),
        (json!(1), "a number"),
        (json!(1.5), "a number"),
        (json!(true), "true or false"),
        (json!("x"), "a string"),
        (json!([]), "a list"),
        (json!({}), "a mapping"),
        (json!(null), "null"),
    ];
    let places = [
        ("a mapping", "/metadata"),
        ("a list", "/spec/containers"),
        ("a string", "/metadata/name"),
        ("a string", "/metadata/labels/other"),
        ("true or false", "/spec/hostNetwork"),
    ];
    for (expected, place) in places {
        for (value, found) in &values {
            let mut pod = json!({
                "metadata": {"name": null, "labels": {"other": ""}},
                "spec": {"containers": null, "hostNetwork": null},
            });
            *pod.pointer_mut(place).expect("a field") = value.clone();
            let read = serde_json::from_value::<PodFacts>(pod);
            let problem = read.err().map(|it| it.to_string());
            // Null is no value, except of a label.
            let is_right = *found == expected || value.is_null() && !place.contains("labels");
            let wrong = format!("found {found}, expected {expected}");
            assert_eq!(problem, (!is_right).then_some(wrong), "{place}: {value}");
        }
    }
}
