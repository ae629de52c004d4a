//! What is read of a pod, and what is too much.

use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use super::{MAX_CONTAINERS, MAX_RESOURCES, MAX_WORDS, read};
use crate::record::ANNOTATIONS_MAX;

fn pod(change: impl FnOnce(&mut Value)) -> String {
    let mut pod = json!({
        "metadata": {"name": "web", "creationTimestamp": null, "labels": {"a": "b"}},
        "spec": {
            "containers": [
                {"name": "app", "env": [{"name": "ISTIO_A", "value": "1"}], "volumeMounts": 7},
                {"name": "istio-proxy", "args": ["proxy", "sidecar"]},
            ],
            "initContainers": [{
                "name": "istio-init",
                "image": "istio:1",
                "command": null,
                "args": ["-p", "15001"],
                "env": [
                    {"name": "ISTIO_DUAL_STACK", "value": "true"},
                    {"name": "ISTIO_REF", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
                    {"name": "PATH", "value": "/bin"},
                ],
                "resources": {"limits": {"cpu": "1"}},
            }],
            "hostNetwork": false,
        },
        "status": {"phase": "Pending", "conditions": []},
    });
    change(&mut pod);
    pod.to_string()
}

fn error(change: impl FnOnce(&mut Value)) -> String {
    let pod = pod(change);
    let error = read(&pod).err().or_else(|| init(&pod).err());
    error.expect("too much").to_string()
}

/// What is read of the first init container.
fn init(text: &str) -> serde_json::Result<Container> {
    read(text)?.init_containers()[0].read()
}

#[test]
fn what_the_webhook_asks_is_read_and_the_rest_is_not() {
    let text = pod(|_| {});
    let pod = read(&text).expect("a pod");
    let names = (pod.name(), pod.generate_name(), pod.namespace());
    assert_eq!(names, (Some("web"), None, None));
    assert_eq!(pod.annotations(), None);
    let names = pod.containers().iter().map(|container| &*container.name);
    assert_eq!(names.collect::<Vec<_>>(), ["app", "istio-proxy"]);
    let init = init(&text).expect("a container");
    assert_eq!(
        (&*init.name, init.image.as_deref()),
        ("istio-init", Some("istio:1"))
    );
    let words = vec!["-p".to_owned(), "15001".to_owned()];
    assert_eq!((init.command, init.args), (None, Some(words)));
    let env = init.env.iter().flatten();
    let env: Vec<_> = env.map(|it| (&*it.name, it.value.as_deref())).collect();
    let expected = [("ISTIO_DUAL_STACK", Some("true")), ("ISTIO_REF", None)];
    assert_eq!(env, expected);
    assert!(
        init.resources
            .as_ref()
            .is_some_and(|it| it.limits.is_some())
    );
    assert!(read("{}").is_ok());
    for nothing in [
        "null",
        "7",
        "{\"spec\": 7}",
        "{\"spec\": {\"containers\": [7]}}",
    ] {
        assert!(read(nothing).is_err(), "{nothing}");
    }
}

#[test]
fn limits() {
    let containers = |count: usize| {
        move |pod: &mut Value| {
            pod["spec"]["containers"] = vec![json!({"name": "x"}); count].into();
        }
    };
    assert!(read(&pod(containers(MAX_CONTAINERS))).is_ok());
    let text = error(containers(MAX_CONTAINERS + 1));
    assert!(text.contains("a list has more than 1000 items"), "{text}");
    let words = |count: usize| {
        move |pod: &mut Value| {
            pod["spec"]["initContainers"][0]["args"] = vec![""; count].into();
        }
    };
    assert!(init(&pod(words(MAX_WORDS))).is_ok());
    let text = error(words(MAX_WORDS + 1));
    assert!(text.contains("a list has more than 4096 items"), "{text}");
    let annotations = |size: usize| {
        move |pod: &mut Value| {
            pod["metadata"]["annotations"] = json!({"a": "\n".repeat(size - 1)});
        }
    };
    assert!(read(&pod(annotations(ANNOTATIONS_MAX))).is_ok());
    let text = error(annotations(ANNOTATIONS_MAX + 1));
    assert!(text.contains("more than 256 KiB"), "{text}");
    let text = error(|pod| {
        let limits = &mut pod["spec"]["initContainers"][0]["resources"]["limits"];
        *limits = json!({"x".repeat(MAX_RESOURCES): "1"});
    });
    assert!(text.contains("more than 16 KiB"), "{text}");
}
