//! What is read of a pod, whatever else it has.

mod values;

use k8s_openapi::api::core::v1::Pod;
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
    sample::select,
};
use serde_json::{Map, Value, json};

use super::{MAX_POD_BYTES, PodFacts, Quota};
use crate::{
    mesh::Mesh,
    record,
    select::{Enroll, INJECT, LABEL, Skipped, Wanted, wanted},
};

const RANGES: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";

fn facts(value: Value) -> PodFacts {
    serde_json::from_value(value).expect("a pod")
}

fn problem(value: Value) -> String {
    let read = serde_json::from_value::<PodFacts>(value);
    read.expect_err("not a pod").to_string()
}

/// Every decision that depends on a pod.
fn decisions(pod: &PodFacts) -> Vec<String> {
    let mut all = Vec::new();
    for enroll in [Enroll::Labeled, Enroll::Injected] {
        for label in [None, Some("enabled"), Some("disabled")] {
            all.push(format!("{:?}", wanted(pod, label, &Mesh::new(enroll))));
        }
    }
    all
}

fn container() -> impl Strategy<Value = Value> {
    let name = select(vec!["app", "istio-proxy", "istio-init", "istio-validation"]);
    let image = option::of(select(vec!["proxyv2:1.8.1", "proxyv2:1.20.0", "app"]));
    let word = select(vec![
        "proxy",
        "router",
        "sidecar",
        "-p",
        "15001",
        "-x",
        "10.0.0.0/8",
        "--flag",
        "",
    ]);
    let variable = (
        select(vec!["ISTIO_DUAL_STACK", "ISTIO_META_DNS_CAPTURE", "HOME"]),
        option::of(select(vec!["true", "false", "x"])),
    );
    let variable = variable.prop_map(|(name, value)| json!({"name": name, "value": value}));
    let policy = option::of(select(vec!["Always", "Never"]));
    let parts = (
        name,
        image,
        option::of(vec(word.clone(), 0..4)),
        option::of(vec(word, 0..4)),
        vec(variable, 0..4),
        policy,
        option::of(0u32..2000),
    );
    parts.prop_map(|(name, image, command, args, env, policy, user)| {
        json!({
            "name": name, "image": image, "command": command, "args": args, "env": env,
            "restartPolicy": policy, "securityContext": {"runAsUser": user, "runAsGroup": user},
        })
    })
}

fn pod() -> impl Strategy<Value = Value> {
    let label = btree_map(
        select(vec![LABEL, INJECT, "app"]),
        select(vec!["enabled", "disabled", "false", "true"]),
        0..3,
    );
    let annotation = btree_map(
        select(vec![
            RANGES,
            "traffic.sidecar.istio.io/excludeOutboundPorts",
            "traffic.sidecar.istio.io/excludeOutboundPort",
            "sidecar.istio.io/interceptionMode",
            "sidetrack.dev/acelerate",
            record::ANNOTATION,
            INJECT,
            "example.com/notes",
        ]),
        select(vec![
            "10.0.0.0/8",
            "80,443",
            "TPROXY",
            "false",
            "{}",
            "{\"words\":[\"-p\",\"7\"]}",
        ]),
        0..5,
    );
    let parts = (
        label,
        annotation,
        option::of(any::<bool>()),
        option::of(select(vec!["gvisor", "nvidia"])),
        vec(container(), 0..4),
        option::of(vec(container(), 0..4)),
        option::of(select(vec!["Pending", "Running", "Failed"])),
    );
    parts.prop_map(
        |(labels, annotations, host, class, containers, init, phase)| {
            json!({
                "metadata": {
                    "name": "web", "namespace": "shop", "uid": "1", "resourceVersion": "7",
                    "labels": labels, "annotations": annotations,
                },
                "spec": {
                    "hostNetwork": host, "runtimeClassName": class, "nodeName": "node",
                    "securityContext": {"runAsUser": 7},
                    "containers": containers, "initContainers": init,
                },
                "status": {"phase": phase, "podIPs": [{"ip": "10.1.1.1"}, {"ip": "fd00::1"}]},
            })
        },
    )
}

/// The same pod with fields that it may have as well, before and after those that count.
fn noisy(value: &Value, strings_only: bool) -> Value {
    let noise = match strings_only {
        true => json!("noise"),
        false => json!({"name": "istio-proxy", "deep": [1, {"containers": [null, 2.5, "x"]}]}),
    };
    match value {
        Value::Object(fields) => {
            let mut all = Map::new();
            all.insert("AFirst".to_owned(), noise.clone());
            for (name, value) in fields {
                let strings_only = ["labels", "annotations"].contains(&name.as_str());
                all.insert(name.clone(), noisy(value, strings_only));
            }
            all.insert("zLast".to_owned(), noise);
            all.into()
        }
        Value::Array(items) => items.iter().map(|item| noisy(item, false)).collect(),
        other => other.clone(),
    }
}

/// As text, with the fields in the opposite order.
fn reversed(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().rev();
            let fields = fields.map(|(name, value)| format!("{}:{}", json!(name), reversed(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(reversed).collect();
            format!("[{}]", items.join(","))
        }
        other => other.to_string(),
    }
}

proptest! {
    #[test]
    fn the_same_facts_from_every_form_of_a_pod(value in pod()) {
        let read = facts(value.clone());
        let expected = decisions(&read);
        let typed: Pod = serde_json::from_value(value.clone()).expect("a typed pod");
        let text = reversed(&value);
        for (form, other) in [
            ("with noise", facts(noisy(&value, false))),
            ("typed", facts(serde_json::to_value(typed).expect("JSON"))),
            ("reversed", serde_json::from_str(&text).expect("JSON")),
            ("as YAML", serde_saphyr::from_str(&text).expect("YAML")),
        ] {
            prop_assert_eq!(&decisions(&other), &expected, "{}", form);
            prop_assert_eq!(&other, &read, "{}", form);
        }
    }
}

#[test]
fn a_large_pod_keeps_little() {
    let variable = |number| json!({"name": format!("VARIABLE_{number}"), "value": "x"});
    let env: Vec<Value> = (0..87_000).map(variable).collect();
    let words = vec!["--flag"; 50_000];
    let pod = json!({
        "metadata": {
            "name": "web",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x".repeat(200 << 10)},
        },
        "spec": {"containers": [
            {"env": env, "name": "app", "args": words},
            {"env": env, "name": "istio-proxy", "args": words},
        ]},
    });
    let pod = facts(pod);
    assert_eq!(pod.excess(), None);
    assert!(pod.bytes() < 100, "{}", pod.bytes());
    let wanted = wanted(&pod, None, &Mesh::new(Enroll::Injected));
    assert!(matches!(wanted, Wanted::Enrolled(_)), "{wanted:?}");
}

/// A pod with a sidecar, one annotation and arguments of istio-init.
fn with_lists(annotation: &str, args: &[&str], phase: &str) -> PodFacts {
    facts(json!({
        "metadata": {"name": "web", "namespace": "shop", "annotations": {RANGES: annotation}},
        "spec": {
            "containers": [{"name": "istio-proxy"}],
            "initContainers": [{"name": "istio-init", "args": args}],
        },
        "status": {"phase": phase},
    }))
}

fn reason(pod: &PodFacts) -> String {
    match wanted(pod, None, &Mesh::new(Enroll::Injected)) {
        Wanted::Rejected(reason) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The longest list that a policy may have, in an annotation and again as the injector's argument.
#[test]
fn the_longest_lists_are_kept() {
    let ranges: Vec<String> = (0..10_000u32)
        .map(|number| format!("203.{}.{}.255/32", 100 + number / 256, number % 256))
        .collect();
    let ranges = ranges.join(",");
    let pod = with_lists(&ranges, &["-x", &ranges], "Running");
    let wanted = wanted(&pod, None, &Mesh::new(Enroll::Injected));
    let Wanted::Enrolled(policy) = wanted else {
        panic!("{wanted:?}");
    };
    assert_eq!(policy.excluded_ranges.len(), 10_000);
}

#[test]
fn a_pod_beyond_the_bound_is_rejected_with_the_number() {
    let small = with_lists("", &[], "Running").bytes();
    let most = "x".repeat(MAX_POD_BYTES - small);
    assert_eq!(with_lists(&most, &[], "Running").excess(), None);
    let pod = with_lists(&(most + "x"), &[], "Running");
    let excess = pod.excess().unwrap();
    assert_eq!(
        (excess.bytes, excess.quota),
        (MAX_POD_BYTES + 1, Quota::Pod)
    );
    assert!(pod.bytes() < 1000, "{}", pod.bytes());
    assert_eq!(pod.meta.name.as_deref(), Some("web"));
    let text = reason(&pod);
    for part in ["524289 bytes", "at most 524288", "shorten the lists"] {
        assert!(text.contains(part), "{text}");
    }
    // Many short words take more memory than their bytes.
    let pod = with_lists("", &vec![""; 1 << 20], "Running");
    assert_eq!(pod.excess().unwrap().bytes, small + (32 << 20));
    assert!(pod.bytes() < 2000, "{}", pod.bytes());
    assert!(reason(&pod).contains("33554"), "{}", reason(&pod));
}

/// What selection asks of a pod beyond the bound is still known.
#[test]
fn a_pod_beyond_the_bound_is_selected_as_any_other() {
    let long = "x".repeat(MAX_POD_BYTES + 1);
    let ended = with_lists(&long, &[], "Failed");
    let wanted = |pod: &PodFacts| wanted(pod, None, &Mesh::new(Enroll::Injected));
    let reason = wanted(&ended);
    assert!(
        matches!(reason, Wanted::Skipped(Skipped::Completed)),
        "{reason:?}"
    );
    let gateway = facts(json!({
        "metadata": {"annotations": {RANGES: long}},
        "spec": {"containers": [{"name": "istio-proxy", "args": ["proxy", "router", "--flag"]}]},
    }));
    assert!(gateway.excess().is_some());
    let reason = wanted(&gateway);
    assert!(
        matches!(reason, Wanted::Skipped(Skipped::Gateway)),
        "{reason:?}"
    );
}

#[test]
fn few_names_of_unknown_annotations_are_kept() {
    let mut annotations: Map<String, Value> = (0..1000)
        .rev()
        .map(|number| (format!("sidetrack.dev/{number:04}"), json!("x")))
        .collect();
    annotations.insert(
        "sidetrack.dev/".to_owned() + &"0".repeat(900 << 10),
        json!(""),
    );
    let pod = reversed(&json!({"metadata": {"annotations": annotations}}));
    let pod: PodFacts = serde_json::from_str(&pod).expect("JSON");
    let names = pod.meta.annotations.unknown();
    assert_eq!(names.len(), 3);
    assert_eq!(names[0], "sidetrack.dev/0000");
    assert!(names[1].len() < 300, "{names:?}");
    assert_eq!(names[2], "sidetrack.dev/0001");
}

#[test]
fn values_of_the_wrong_type() {
    for (value, expected) in [
        (json!([]), "found a list, expected a mapping"),
        (
            json!({"metadata": "web"}),
            "found a string, expected a mapping",
        ),
        (
            json!({"metadata": {"name": 7}}),
            "found a number, expected a string",
        ),
        (
            json!({"metadata": {"labels": {"app": true}}}),
            "found true or false, expected a string",
        ),
        (
            json!({"metadata": {"annotations": {RANGES: null}}}),
            "found null, expected a string",
        ),
        (
            json!({"spec": {"hostNetwork": "true"}}),
            "found a string, expected true or false",
        ),
        (
            json!({"spec": {"securityContext": {"runAsUser": "1337"}}}),
            "found a string, expected a number from 0 to 4294967295",
        ),
        (
            json!({"spec": {"securityContext": {"runAsGroup": -1}}}),
            "found a number, expected a number from 0 to 4294967295",
        ),
        (
            json!({"spec": {"securityContext": {"runAsGroup": u64::MAX}}}),
            "found a number, expected a number from 0 to 4294967295",
        ),
        (
            json!({"spec": {"containers": {}}}),
            "found a mapping, expected a list",
        ),
        (
            json!({"spec": {"containers": [{"name": "istio-proxy", "args": [1.5]}]}}),
            "found a number, expected a string",
        ),
    ] {
        let text = problem(value.clone());
        assert!(text.contains(expected), "{value}: {text}");
    }
    // Null is a missing field.
    let null = json!({"metadata": {"name": null, "labels": null}, "spec": {"hostNetwork": null}, "status": null});
    assert_eq!(facts(null), PodFacts::default());
}
