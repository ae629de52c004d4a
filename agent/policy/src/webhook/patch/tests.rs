//! Which pods are changed, and how.

use json_patch::{Patch, PatchOperation, patch};
use serde_json::{Value, json};

use super::{APPARMOR, Change, change};
use crate::{
    mesh::Mesh,
    record::{ANNOTATION, ANNOTATIONS_MAX},
    select::Enroll,
    webhook::{Settings, pod::read, validation::VALIDATION},
};

fn decided(pod: &Value) -> Change {
    let facts = serde_json::from_value(pod.clone()).expect("a pod");
    let text = pod.to_string();
    let settings = Settings {
        mesh: &Mesh::new(Enroll::Injected),
        namespace_label: None,
        image: "sidetrack:1",
    };
    change(&read(&text).expect("a pod"), &facts, &settings)
}

fn patched(pod: &Value) -> Value {
    match decided(pod) {
        Change::Patch(operations, _) => {
            let mut pod = pod.clone();
            patch(&mut pod, &operations).expect("a patch that fits");
            pod
        }
        other => panic!("{other:?}"),
    }
}

fn refused(pod: &Value) -> String {
    match decided(pod) {
        Change::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// A pod with these init containers.
fn pod(init: Value) -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "app"}, {"name": "istio-proxy"}], "initContainers": init},
    })
}

fn init_names(pod: &Value) -> Vec<&str> {
    let init = pod["spec"]["initContainers"].as_array().expect("a list");
    init.iter()
        .filter_map(|init| init["name"].as_str())
        .collect()
}

#[test]
fn only_pods_with_one_istio_init_are_changed() {
    for init in [
        json!([]),
        json!([{"name": "migrate"}]),
        json!([{"name": "istio-init"}, {"name": "istio-init"}]),
    ] {
        assert!(
            matches!(decided(&pod(init.clone())), Change::None),
            "{init}"
        );
    }
    let last = patched(&pod(
        json!([{"name": "a"}, {"name": "b"}, {"name": "istio-init"}]),
    ));
    assert_eq!(init_names(&last), ["a", "b", "sidetrack-validation"]);
    let first = patched(&pod(json!([{"name": "istio-init"}, {"name": "b"}])));
    assert_eq!(init_names(&first), ["sidetrack-validation", "b"]);
}

/// What may change the rules of istio-init and would be lost with it.
#[test]
fn an_istio_init_that_is_not_fully_read_stays() {
    let with = |field: &str, value: Value| {
        let mut init = json!({"name": "istio-init", "args": ["istio-iptables", "-p", "15001"]});
        init[field] = value;
        pod(json!([init]))
    };
    let from = json!({"fieldRef": {"fieldPath": "status.podIP"}});
    let variable = |name: &str| json!([{"name": name, "valueFrom": from}]);
    for (pod, named) in [
        (
            with("args", json!(["-p", "15001", "--new-flag"])),
            "the word \"--new-flag\"",
        ),
        (with("env", variable("PROXY_UID")), "variable PROXY_UID"),
        (
            with("env", variable("ISTIO_SERVICE_EXCLUDE_CIDR")),
            "variable ISTIO_SERVICE_EXCLUDE_CIDR",
        ),
        (
            with(
                "env",
                json!([{"name": "ISTIO_SERVICE_CIDR", "value": "$(X)"}]),
            ),
            "variable ISTIO_SERVICE_CIDR",
        ),
        (
            with("envFrom", json!([{"configMapRef": {"name": "proxy"}}])),
            "envFrom",
        ),
    ] {
        let reason = refused(&pod);
        assert!(
            reason.contains("istio-init may change its rules"),
            "{reason}"
        );
        assert!(reason.starts_with(named), "{reason}");
    }
    let other = refused(&with("command", json!(["sh", "-c"])));
    assert!(
        other.starts_with("istio-init runs \"sh\", whose rules"),
        "{other}"
    );
    let read = [
        with("env", variable("POD_NAME")),
        with("env", json!([{"name": "PROXY_UID", "value": "1500"}])),
        with("envFrom", json!([])),
        with("command", json!(["/usr/local/bin/pilot-agent"])),
    ];
    for pod in read {
        let record = patched(&pod)["metadata"]["annotations"][ANNOTATION].clone();
        let is_kept = record.as_str().is_some_and(|text| text.contains("1500"));
        assert_eq!(is_kept, pod.to_string().contains("1500"), "{record}");
    }
}

/// The patch tests the container's name first, so that it fails as a whole on another pod.
#[test]
fn a_patch_fits_only_the_pod_it_was_made_for() {
    let Change::Patch(Patch(operations), lost) =
        decided(&pod(json!([{"name": "a"}, {"name": "istio-init"}])))
    else {
        panic!("no patch");
    };
    assert!(lost.is_empty());
    let PatchOperation::Test(test) = &operations[0] else {
        panic!("{operations:?}");
    };
    assert_eq!(test.path.to_string(), "/spec/initContainers/1/name");
    assert_eq!(test.value, "istio-init");
    let mut other = pod(json!([{"name": "istio-init"}, {"name": "a"}]));
    assert!(patch(&mut other, &Patch(operations)).is_err());
}

#[test]
fn the_record_joins_the_annotations() {
    let init = json!([{"name": "istio-init", "args": ["-p", "15002"]}]);
    let plain = patched(&pod(init.clone()));
    let record = "{\"words\":[\"-p\",\"15002\"]}";
    assert_eq!(
        plain["metadata"]["annotations"],
        json!({ANNOTATION: record})
    );
    let mut annotated = pod(init);
    annotated["metadata"]["annotations"] = json!({"kept": "as it is", ANNOTATION: "{}", format!("{APPARMOR}istio-init"): "runtime/default"});
    assert_eq!(
        patched(&annotated)["metadata"]["annotations"],
        json!({"kept": "as it is", ANNOTATION: record})
    );
}

#[test]
fn init_containers_of_other_meshes_are_replaced() {
    let sidecar = |name: &str| json!({"name": name, "restartPolicy": "Always"});
    let linkerd = json!([
        {"name": "linkerd-init", "args": ["--ipv6=false", "--proxy-uid", "2102"]},
        sidecar("linkerd-proxy"),
    ]);
    let mut pod = pod(linkerd);
    pod["spec"]["containers"] = json!([{"name": "app"}]);
    let after = patched(&pod);
    let first = &after["spec"]["initContainers"][0];
    assert_eq!(first["name"], VALIDATION);
    assert_eq!(first["securityContext"]["runAsUser"], 65534);
    let args: Vec<&str> = first["args"]
        .as_array()
        .expect("args")
        .iter()
        .filter_map(|it| it.as_str())
        .collect();
    assert_eq!(
        args,
        [
            "validate",
            "--timeout=120",
            "--outbound-port=4140",
            "--inbound-port=4143",
            "--outside",
            "--ipv6=no"
        ]
    );
    // The same policy comes of the record.
    let policy = |pod: &Value| {
        let facts = serde_json::from_value(pod.clone()).expect("a pod");
        crate::fixture::of_pod(&facts).expect("a policy")
    };
    assert_eq!(policy(&after), policy(&pod));
    pod["spec"]["initContainers"] = json!([{"name": "consul-connect-inject-init"}]);
    pod["spec"]["containers"] = json!([{"name": "app"}, {"name": "consul-dataplane"}]);
    pod["metadata"]["annotations"] = json!({
        "consul.hashicorp.com/connect-inject-status": "injected",
        "consul.hashicorp.com/transparent-proxy-status": "enabled",
        "consul.hashicorp.com/redirect-traffic-config": r#"{"ProxyUserID":"5995","ProxyInboundPort":20000}"#,
    });
    assert!(refused(&pod).contains("docs/consul.md"));
}

/// All annotations together may have 256 KiB; the one that is replaced does not count.
#[test]
fn a_record_that_just_fits() {
    let record = "{\"words\":[\"-p\",\"15002\"]}";
    let name = "filler";
    let free = ANNOTATIONS_MAX - ANNOTATION.len() - record.len() - name.len();
    let filled = |len: usize| {
        let mut pod = pod(json!([{"name": "istio-init", "args": ["-p", "15002"]}]));
        pod["metadata"]["annotations"] = json!({name: "x".repeat(len), ANNOTATION: "{}"});
        pod
    };
    let pod = patched(&filled(free));
    assert_eq!(pod["metadata"]["annotations"][ANNOTATION], record);
    let reason = refused(&filled(free + 1));
    assert!(
        reason.contains("all annotations together may have 256 KiB"),
        "{reason}"
    );
}

/// The injector runs again after the webhook and adds its container again.
#[test]
fn a_second_run_removes_istio_init_again() {
    let once = patched(&pod(
        json!([{"name": "istio-init", "args": ["-p", "15002"]}]),
    ));
    let mut again = once.clone();
    let init = again["spec"]["initContainers"]
        .as_array_mut()
        .expect("a list");
    init.push(json!({"name": "istio-init", "args": ["-p", "15002"]}));
    assert_eq!(patched(&again), once);
    for (field, value) in [
        ("image", json!("other:1")),
        ("args", json!(["validate"])),
        ("args", json!(null)),
    ] {
        let mut foreign = again.clone();
        foreign["spec"]["initContainers"][0][field] = value;
        let reason = refused(&foreign);
        assert!(
            reason.contains("of its own; rename it"),
            "{field}: {reason}"
        );
    }
}

#[test]
fn an_app_with_the_reserved_name_is_refused() {
    let mut pod = pod(json!([{"name": "istio-init"}]));
    pod["spec"]["containers"][0]["name"] = "sidetrack-validation".into();
    let reason = refused(&pod);
    assert!(reason.contains("rename it"), "{reason}");
}

#[test]
fn only_enrolled_pods_are_changed() {
    let mut host = pod(json!([{"name": "istio-init"}]));
    host["spec"]["hostNetwork"] = true.into();
    assert!(matches!(decided(&host), Change::None));
    let bad = pod(json!([{"name": "istio-init", "args": ["-p", "0"]}]));
    let reason = refused(&bad);
    assert!(reason.contains("argument -p of istio-init"), "{reason}");
    let Change::Patch(_, lost) = decided(&pod(
        json!([{"name": "istio-init", "image": "proxyv2:1.5.0", "args": ["--redirect-dns"]}]),
    )) else {
        panic!("no patch");
    };
    assert!(lost[0].contains("DNS"), "{lost:?}");
}
