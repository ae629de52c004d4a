//! Checks that hold for the answer to every body. The fuzz target uses them as well.

use json_patch::{Patch, patch};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use sidetrack_policy::{
    facts::PodFacts,
    policy::Policy,
    record,
    select::{Wanted, wanted},
    webhook::{Outcome, Settings, VALIDATION, answer},
};

const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/istio-init";

/// An answer that passed all checks.
pub struct Checked {
    /// What the webhook did with the pod.
    pub outcome: Outcome,
    /// The response in the AdmissionReview.
    pub response: Value,
    /// The pod as it will be.
    pub pod: Value,
}

/// Checks the answer to a body; `None` if the body was refused as malformed.
pub fn check_answer(body: &[u8], settings: &Settings<'_>) -> Option<Checked> {
    let answer = match answer(body, settings) {
        Ok(answer) => answer,
        Err(malformed) => {
            assert_printable(&malformed.to_string());
            return None;
        }
    };
    let request: Value = serde_json::from_slice(body).expect("what was answered is JSON");
    let review: Value = serde_json::from_slice(&answer.review).expect("an answer is JSON");
    assert_eq!(review["kind"], "AdmissionReview");
    assert_eq!(review["apiVersion"], request["apiVersion"]);
    let response = &review["response"];
    assert_eq!(response["uid"], request["request"]["uid"]);
    assert_eq!(response["allowed"], true, "every pod is admitted");
    for warning in response["warnings"].as_array().into_iter().flatten() {
        assert_eq!(request["apiVersion"], "admission.k8s.io/v1");
        assert_printable(warning.as_str().expect("a text"));
    }
    assert!(!answer.pod.contains(char::is_control), "{:?}", answer.pod);
    let before = request["request"]["object"].clone();
    let mut after = before.clone();
    if answer.outcome == Outcome::Changed {
        assert_eq!(response["patchType"], "JSONPatch");
        let given = serde_json::from_value(response["patch"].clone()).expect("base64");
        let ByteString(given) = given;
        let given: Patch = serde_json::from_slice(&given).expect("a JSON patch");
        patch(&mut after, &given).expect("a patch that can be applied");
        if read(&before).is_some() {
            check_change(&before, &after, settings);
        }
        check_second_run(&request, &after, settings);
    } else {
        assert_eq!(response["patch"], Value::Null);
        assert_eq!(response["patchType"], Value::Null);
        if answer.outcome == Outcome::Unchanged
            && let Some(pod) = read(&before)
        {
            assert!(inits(&before, record::ISTIO_INIT) != 1 || !is_enrolled(&pod, settings));
        }
    }
    Some(Checked {
        outcome: answer.outcome,
        response: response.clone(),
        pod: after,
    })
}

fn check_change(before: &Value, after: &Value, settings: &Settings<'_>) {
    let [old, new] = [before, after].map(|pod| read(pod).expect("a pod"));
    assert!(is_enrolled(&old, settings) && is_enrolled(&new, settings));
    assert_eq!(inits(before, record::ISTIO_INIT), 1);
    assert_eq!(inits(after, record::ISTIO_INIT), 0);
    assert_eq!(inits(after, VALIDATION), inits(before, VALIDATION).max(1));
    let defaults = &settings.mesh.defaults;
    let policy = Policy::of_pod(&old, defaults).expect("a policy");
    assert_eq!(Policy::of_pod(&new, defaults), Ok(policy), "{after}");
    assert_eq!(rest(before), rest(after), "only istio-init is changed");
    // It names a container that is not there any more.
    assert_eq!(after["metadata"]["annotations"][APPARMOR], Value::Null);
    if inits(before, VALIDATION) == 0 {
        let init = before["spec"]["initContainers"].as_array().expect("some");
        let place = init.iter().position(|it| it["name"] == record::ISTIO_INIT);
        let validation = &after["spec"]["initContainers"][place.expect("it")];
        assert_eq!(validation["name"], VALIDATION);
        let security = &validation["securityContext"];
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["privileged"], false);
        let is_root = security["runAsUser"] == 0;
        assert_eq!(security["runAsNonRoot"], !is_root);
    }
}

/// A second call leaves the result as it is, also after the injector has added istio-init again.
fn check_second_run(request: &Value, after: &Value, settings: &Settings<'_>) {
    let answer_for = |pod: &Value| {
        let mut request = request.clone();
        request["request"]["object"] = pod.clone();
        let body = request.to_string();
        answer(body.as_bytes(), settings).expect("an AdmissionReview")
    };
    assert_eq!(answer_for(after).outcome, Outcome::Unchanged);
    let mut pod = after.clone();
    let before = request["request"]["object"]["spec"]["initContainers"].as_array();
    let init = before.into_iter().flatten();
    let init = init.filter(|init| init["name"] == record::ISTIO_INIT);
    let all = pod["spec"]["initContainers"].as_array_mut();
    all.expect("init containers").extend(init.cloned());
    let body = answer_for(&pod);
    assert_eq!(body.outcome, Outcome::Changed);
    let review: Value = serde_json::from_slice(&body.review).expect("JSON");
    let ByteString(given) =
        serde_json::from_value(review["response"]["patch"].clone()).expect("base64");
    let given: Patch = serde_json::from_slice(&given).expect("a JSON patch");
    patch(&mut pod, &given).expect("a patch that can be applied");
    assert_eq!(&pod, after, "as after the first time");
}

/// A pod without the fields that the webhook may change.
fn rest(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(init) = pod["spec"]["initContainers"].as_array_mut() {
        init.retain(|it| it["name"] != record::ISTIO_INIT && it["name"] != VALIDATION);
    }
    if let Some(annotations) = pod["metadata"]["annotations"].as_object_mut() {
        annotations.remove(record::ANNOTATION);
        annotations.remove(APPARMOR);
    }
    if pod["metadata"]["annotations"] == json!({}) {
        pod["metadata"]["annotations"] = Value::Null;
    }
    pod
}

/// All of a pod. The webhook reads less, and so also pods that have nonsense elsewhere.
fn read(pod: &Value) -> Option<PodFacts> {
    serde_json::from_value(pod.clone()).ok()
}

fn is_enrolled(pod: &PodFacts, settings: &Settings<'_>) -> bool {
    let wanted = wanted(pod, settings.namespace_label, settings.mesh);
    matches!(wanted, Wanted::Enrolled(_))
}

/// How many init containers have a name.
fn inits(pod: &Value, name: &str) -> usize {
    let all = pod["spec"]["initContainers"].as_array();
    let all = all.into_iter().flatten();
    all.filter(|init| init["name"] == name).count()
}

/// A text fits into a log and is safe to print.
fn assert_printable(text: &str) {
    assert!(!text.is_empty());
    assert!(text.chars().count() < 1000, "{text}");
    assert!(!text.contains(char::is_control), "{text:?}");
}
