//! Requests and answers.

use serde_json::{Value, json};

use super::{OBJECTS, Outcome, ReviewAnswer, answer};
use crate::{mesh::Mesh, select::Enroll, webhook::Settings};

fn review(change: impl FnOnce(&mut Value)) -> Value {
    let mut review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "operation": "CREATE",
            "namespace": "shop",
            "object": {
                "metadata": {"name": "web-0"},
                "spec": {
                    "containers": [{"name": "app"}, {"name": "istio-proxy"}],
                    "initContainers": [{"name": "istio-init", "image": "proxyv2:1.5.0", "args": ["--redirect-dns"]}],
                },
            },
        },
    });
    change(&mut review);
    review
}

fn answered(review: &Value) -> (ReviewAnswer, Value) {
    let settings = Settings {
        mesh: &Mesh::new(Enroll::Injected),
        namespace_label: None,
        image: "sidetrack:1",
    };
    let answer = answer(review.to_string().as_bytes(), &settings).expect("an answer");
    let response = serde_json::from_slice(&answer.review).expect("JSON");
    (answer, response)
}

fn misconfigured(change: impl FnOnce(&mut Value)) -> String {
    let (answer, response) = answered(&review(change));
    assert_eq!(response["response"]["allowed"], true);
    let Outcome::Misconfigured(problem) = answer.outcome else {
        panic!("{:?}", answer.outcome);
    };
    let warning = response["response"]["warnings"][0]
        .as_str()
        .expect("a warning");
    assert!(warning.starts_with("sidetrack: "), "{warning}");
    problem
}

#[test]
fn a_changed_pod() {
    let (answer, response) = answered(&review(|_| {}));
    assert_eq!(answer.outcome, Outcome::Changed);
    assert_eq!((answer.pod.as_str(), answer.dry_run), ("shop/web-0", false));
    assert_eq!(response["apiVersion"], "admission.k8s.io/v1");
    let response = &response["response"];
    assert_eq!(
        (&response["uid"], &response["patchType"]),
        (&json!("u-1"), &json!("JSONPatch"))
    );
    let warning = response["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("sidetrack: DNS capture"), "{warning}");
}

/// Only version v1 has warnings.
#[test]
fn v1beta1_has_no_warnings() {
    let (answer, response) = answered(&review(|review| {
        review["apiVersion"] = "admission.k8s.io/v1beta1".into();
        review["request"]["dryRun"] = true.into();
    }));
    assert_eq!((answer.outcome, answer.dry_run), (Outcome::Changed, true));
    assert_eq!(response["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(response["response"]["warnings"], Value::Null);
    assert!(response["response"]["patch"].is_string());
}

#[test]
fn requests_for_something_else_are_admitted_with_a_warning() {
    let problem = misconfigured(|review| review["request"]["operation"] = "DELETE".into());
    assert!(problem.contains("was called for \"DELETE\""), "{problem}");
    let problem = misconfigured(|review| review["request"]["subResource"] = "exec".into());
    assert!(problem.contains("subresource \"exec\""), "{problem}");
    for (field, value) in [("group", "apps"), ("version", "v2"), ("kind", "Scale")] {
        let problem = misconfigured(|review| review["request"]["kind"][field] = value.into());
        assert!(
            problem.contains(&format!("{field} \"{value}\"")),
            "{problem}"
        );
    }
    let (answer, _) = answered(&review(|review| {
        review["request"]["subResource"] = "".into()
    }));
    assert_eq!(answer.outcome, Outcome::Changed);
}

#[test]
fn pods_that_cannot_be_read_are_admitted_with_a_warning() {
    let problem = misconfigured(|review| review["request"]["object"] = json!({"spec": 7}));
    assert!(problem.contains("cannot be read"), "{problem}");
    let problem = misconfigured(|review| {
        review["request"]["object"]["metadata"] = json!({});
    });
    assert!(
        problem.contains("neither name nor generateName"),
        "{problem}"
    );
}

/// The name for the log: the request's namespace wins, and a generated name ends with `*`.
#[test]
fn names_for_the_log() {
    for (namespace, metadata, expected) in [
        (
            json!("shop"),
            json!({"name": "web-0", "namespace": "other"}),
            "shop/web-0",
        ),
        (
            json!(null),
            json!({"name": "web-0", "namespace": "other"}),
            "other/web-0",
        ),
        (json!(null), json!({"name": "web-0"}), "/web-0"),
        (json!("shop"), json!({"generateName": "web-"}), "shop/web-*"),
        (
            json!("shop"),
            json!({"name": "", "generateName": "web-"}),
            "shop/web-*",
        ),
        (json!("shop"), json!({"name": "a\u{1b}"}), "shop/a\\u{1b}"),
    ] {
        let (answer, _) = answered(&review(|review| {
            review["request"]["namespace"] = namespace.clone();
            review["request"]["object"]["metadata"] = metadata.clone();
        }));
        assert_eq!(answer.pod, expected, "{namespace} {metadata}");
    }
}

/// As many objects as the bound allows are read, one more is refused unread.
#[test]
fn the_bound_on_objects() {
    let with = |objects: usize| {
        let mut review = review(|_| {});
        let used = review.to_string().matches('{').count();
        review["more"] = vec![json!({}); objects - used].into();
        let settings = Settings {
            mesh: &Mesh::new(Enroll::Injected),
            namespace_label: None,
            image: "sidetrack:1",
        };
        answer(review.to_string().as_bytes(), &settings)
    };
    assert!(with(OBJECTS).is_ok());
    let error = with(OBJECTS + 1).unwrap_err().to_string();
    assert!(error.contains("more than 20000 opening braces"), "{error}");
}

#[test]
fn bodies_that_are_no_review() {
    let settings = Settings {
        mesh: &Mesh::new(Enroll::Injected),
        namespace_label: None,
        image: "sidetrack:1",
    };
    let refused = |body: String| answer(body.as_bytes(), &settings).unwrap_err().to_string();
    let kind = refused(review(|review| review["kind"] = "Pod".into()).to_string());
    assert!(kind.contains("send an AdmissionReview"), "{kind}");
    let version = refused(review(|review| review["apiVersion"] = "v1".into()).to_string());
    assert!(version.contains("send admission.k8s.io/v1 or"), "{version}");
    for uid in [json!(""), json!(null)] {
        let request = refused(
            review(|review| {
                review["request"]
                    .as_object_mut()
                    .expect("fields")
                    .remove("uid");
                if !uid.is_null() {
                    review["request"]["uid"] = uid.clone();
                }
            })
            .to_string(),
        );
        assert!(
            request.contains("no request, or one without uid"),
            "{request}"
        );
    }
    let array = refused("[1]".to_owned());
    assert!(array.contains("not made of objects"), "{array}");
    let spaces = format!(" \n{}", review(|_| {}));
    assert!(answer(spaces.as_bytes(), &settings).is_ok());
}
