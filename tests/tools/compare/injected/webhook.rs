//! The webhook's answer for a pod: where it replaces the init container, the pod's policy stays the same.

use anyhow::{Result, bail, ensure};
use json_patch::Patch;
use lab::product::{
    PodFacts, REPLACED,
    mesh::{Enroll, Mesh, MeshName},
};
use serde_json::{Value, json};
use sidetrack_policy::{
    Policy,
    webhook::{Outcome, Settings, VALIDATION, answer},
};

use super::selected;

/// Checks the answer for a pod with this policy.
pub fn check(pod: &Value, policy: &Policy) -> Result<()> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE", "namespace": "shop", "object": pod,
        },
    });
    let settings = Settings {
        mesh: &Mesh::new(Enroll::Injected),
        namespace_label: None,
        image: "sidetrack:1",
    };
    let answer = answer(review.to_string().as_bytes(), &settings)?;
    let facts: PodFacts = serde_json::from_value(pod.clone())?;
    let init = facts.iptables_init().filter(|name| REPLACED.contains(name));
    match (init, answer.outcome) {
        (Some(_), Outcome::Changed) => {
            let patched = patched(pod, &answer.review)?;
            let names = init_names(&patched);
            ensure!(names.contains(&VALIDATION), "init containers {names:?}");
            ensure!(
                !names.iter().any(|name| REPLACED.contains(name)),
                "init containers {names:?}"
            );
            let then = selected(&patched)?;
            let changes = policy.changes_to(&then);
            ensure!(
                policy.has_rules_of(&then),
                "another policy: {}",
                changes.join("; ")
            );
            Ok(())
        }
        (None, Outcome::Unchanged) => Ok(()),
        // Its init container registers the pod as well.
        (None, Outcome::Refused(_)) if policy.dialect.mesh() == MeshName::Consul => Ok(()),
        (_, outcome) => bail!("init container {init:?}, and {outcome:?}"),
    }
}

fn patched(pod: &Value, review: &[u8]) -> Result<Value> {
    let review: Value = serde_json::from_slice(review)?;
    let patch =
        serde_json::from_value::<k8s_openapi::ByteString>(review["response"]["patch"].clone())?;
    let patch: Patch = serde_json::from_slice(&patch.0)?;
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch)?;
    Ok(patched)
}

fn init_names(pod: &Value) -> Vec<&str> {
    let init = pod["spec"]["initContainers"]
        .as_array()
        .into_iter()
        .flatten();
    init.filter_map(|init| init["name"].as_str()).collect()
}
