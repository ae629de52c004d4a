use serde_json::{Value, json};

use super::Known;

/// An enrolled pod of which the agent says this besides.
fn known(fields: Value) -> Known {
    let mut pod = json!({
        "namespace": "shop", "name": "web-0", "state": "enrolled",
        "netns": {"path": "/proc/1/ns/net", "inode": 4026531840_u32},
    });
    for (field, value) in fields.as_object().expect("an object") {
        pod[field] = value.clone();
    }
    serde_json::from_value(pod).expect("a pod")
}

#[test]
fn the_sidecar_is_as_the_agent_reports_it() {
    for (fields, expected) in [
        (json!({}), "unknown"),
        (json!({"sidecar": null}), "unknown"),
        (json!({"sidecar": {"state": "up"}}), "up"),
        (
            json!({"sidecar": {"state": "hangs", "waiting": 272, "seconds": 12}}),
            "hangs",
        ),
        (json!({"sidecar": {"state": "of the future"}}), "unknown"),
        (json!({"sidecar": {"state": "up"}, "netns": null}), "-"),
    ] {
        assert_eq!(known(fields.clone()).listener(), expected, "{fields}");
    }
}

#[test]
fn what_waits_for_a_sidecar_that_hangs_is_a_remark() {
    let hangs = json!({"sidecar": {"state": "hangs", "waiting": 272, "seconds": 12}});
    assert_eq!(
        known(hangs).hangs().as_deref(),
        Some("its sidecar listens and does not accept: 272 connections wait, the first for 12s")
    );
    assert_eq!(known(json!({"sidecar": {"state": "up"}})).hangs(), None);
}

#[test]
fn the_last_refusal_is_a_remark() {
    let refusals = json!({"refusals": [{"reason": "no-sidecar", "count": 2}, {"reason": "older"}]});
    let remark = known(refusals).last_refusal();
    assert_eq!(
        remark.as_deref(),
        Some("last refused: no-sidecar, see `kubectl sidetrack why`")
    );
    assert_eq!(known(json!({"refusals": []})).last_refusal(), None);
}

#[test]
fn a_pod_without_its_name_or_state_is_not_understood() {
    for missing in ["namespace", "name", "state"] {
        let mut pod = known(json!({})).value;
        pod.as_object_mut().expect("an object").remove(missing);
        let error = serde_json::from_value::<Known>(pod).expect_err(missing);
        assert!(error.to_string().contains(missing), "{error}");
    }
}
