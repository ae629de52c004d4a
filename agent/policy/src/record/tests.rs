//! Records of istio-init containers.

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::{ANNOTATION, ANNOTATIONS_MAX, Record};
use crate::facts::PodFacts;

fn container(value: Value) -> Container {
    serde_json::from_value(value).expect("a container")
}

fn annotated(text: &str) -> PodFacts {
    let pod = json!({"metadata": {"annotations": {ANNOTATION: text}}});
    serde_json::from_value(pod).expect("a pod")
}

#[test]
fn a_container_is_recorded() {
    let record = Record::of_container(&container(json!({
        "name": "istio-init",
        "image": "proxyv2:1.8",
        "command": ["istio-iptables", "-p"],
        "args": ["15001"],
        "env": [
            {"name": "ISTIO_A", "value": "first"},
            {"name": "ISTIO_A", "value": "second"},
            {"name": "ISTIO_B", "value": "hidden"},
            {"name": "ISTIO_B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "PASSWORD", "value": "secret"},
        ],
    })));
    assert_eq!(record.words, ["istio-iptables", "-p", "15001"]);
    assert_eq!(record.image.as_deref(), Some("proxyv2:1.8"));
    let env: Vec<_> = record.env.iter().collect();
    assert_eq!(env, [(&"ISTIO_A".to_owned(), &"second".to_owned())]);
    let text = serde_json::to_string(&record).expect("JSON");
    assert_eq!(Record::of_annotation(&annotated(&text)), Ok(Some(record)));
}

#[test]
fn a_pod_without_the_annotation_has_no_record() {
    assert_eq!(Record::of_annotation(&PodFacts::default()), Ok(None));
}

/// The API server's own bound: a record of exactly that size is read, one byte more is refused.
#[test]
fn the_largest_record() {
    assert_eq!(ANNOTATIONS_MAX, 262_144);
    let around = "{\"words\":[\"\"]}".len();
    let record = |len: usize| {
        let text = format!("{{\"words\":[\"{}\"]}}", "x".repeat(len - around));
        assert_eq!(text.len(), len);
        Record::of_annotation(&annotated(&text))
    };
    assert!(record(ANNOTATIONS_MAX).is_ok());
    let error = record(ANNOTATIONS_MAX + 1).unwrap_err();
    assert_eq!(error.problem, "it is longer than 256 KiB");
    assert_eq!(error.origin, format!("annotation {ANNOTATION}"));
}
