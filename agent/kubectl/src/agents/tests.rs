use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sidetrack_policy::select::Enroll;

use super::by_node;

fn pod(name: &str, created: &str, state: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "sidetrack-system", "creationTimestamp": created},
        "spec": {"nodeName": "node-1", "containers": [{"name": "agent", "args": ["agent", "--enroll=labeled"]}]},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "agent", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state,
        }]},
    })
}

fn pods(values: &[Value]) -> Vec<Pod> {
    values
        .iter()
        .map(|value| serde_json::from_value(value.clone()).expect("a pod"))
        .collect()
}

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-02T00:00:00Z";

#[test]
fn a_running_pod_counts_before_a_newer_one_that_cannot_be_asked() {
    let running = pod("old", OLD, json!({"running": {}}));
    let waiting = pod(
        "new",
        NEW,
        json!({"waiting": {"reason": "ContainerCreating"}}),
    );
    for order in [[&running, &waiting], [&waiting, &running]] {
        let agents = by_node(&pods(&order.map(Clone::clone)));
        assert_eq!(agents["node-1"].pod, "old");
        assert_eq!(agents["node-1"].down, None);
    }
    let agents = by_node(&pods(&[waiting]));
    assert_eq!(
        agents["node-1"].down.as_deref(),
        Some(
            "the agent's container waits: ContainerCreating: kubectl describe pod -n sidetrack-system new shows more"
        )
    );
}

#[test]
fn an_agent_that_is_not_scheduled_is_that_of_the_node_it_is_meant_for() {
    let mut pending = pod("new", NEW, json!({}));
    pending["status"] = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"},
    ]});
    let mut spec = pending["spec"].take();
    spec["nodeName"] = Value::Null;
    pending["spec"] = spec.clone();
    assert_eq!(by_node(&pods(&[pending.clone()])).len(), 0);
    spec["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["node-3"]},
        ]}],
    }}});
    pending["spec"] = spec;
    let agents = by_node(&pods(&[pending]));
    assert_eq!(
        agents["node-3"].down.as_deref(),
        Some(
            "the agent's pod is Pending (0/3 nodes are available): kubectl describe pod -n sidetrack-system new shows more"
        )
    );
}

#[test]
fn what_an_agent_said_as_it_ended_is_shown() {
    let down = |state: Value, before: Value| {
        let mut pod = pod("one", OLD, state);
        pod["status"]["containerStatuses"][0]["lastState"] = before;
        by_node(&pods(&[pod]))["node-1"].down.clone()
    };
    let ended = json!({"terminated": {
        "exitCode": 1, "message": "starting\nsidetrack: /host/bpf is not a bpffs\u{1b}[2J\n\n",
    }});
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
    let expected = Some(
        "the agent's container has ended with code 1: sidetrack: /host/bpf is not a bpffs\\u{1b}[2J: kubectl logs -n sidetrack-system one shows more"
            .to_owned(),
    );
    assert_eq!(down(waits, ended.clone()), expected);
    assert_eq!(down(ended.clone(), json!({})), expected);
    assert_eq!(down(json!({"running": {}}), ended.clone()), None);
    let image =
        json!({"waiting": {"reason": "ErrImagePull", "message": "pull nosuch:1: not found"}});
    let said = down(image, json!({})).expect("it is down");
    assert!(
        said.contains("ErrImagePull (pull nosuch:1: not found): "),
        "{said}"
    );
}

#[test]
fn a_pod_that_leaves_counts_after_its_successor() {
    let mut leaving = pod("old", NEW, json!({"running": {}}));
    leaving["metadata"]["deletionTimestamp"] = json!(NEW);
    let running = pod("new", OLD, json!({"running": {}}));
    let agents = by_node(&pods(&[running, leaving]));
    assert_eq!(agents["node-1"].pod, "new");
}

#[test]
fn which_pods_an_agent_enrolls_is_in_its_arguments() {
    for (arguments, expected) in [
        (json!(["agent", "--enroll=injected"]), Enroll::Injected),
        (json!(["agent", "--enroll", "injected"]), Enroll::Injected),
        (json!(["agent", "--enroll", "labeled"]), Enroll::Labeled),
        (json!(["agent"]), Enroll::Labeled),
    ] {
        let mut one = pod("one", OLD, json!({"running": {}}));
        one["spec"]["containers"][0]["args"] = arguments.clone();
        assert_eq!(
            by_node(&pods(&[one]))["node-1"].enroll,
            expected,
            "{arguments}"
        );
    }
}

#[test]
fn a_pod_without_the_container_or_a_node_is_no_agent() {
    let mut other = pod("other", OLD, json!({"running": {}}));
    other["spec"]["containers"][0]["name"] = json!("cleanup");
    let mut unscheduled = pod("unscheduled", OLD, json!({"running": {}}));
    unscheduled["spec"]["nodeName"] = Value::Null;
    assert!(by_node(&pods(&[other, unscheduled])).is_empty());
}
