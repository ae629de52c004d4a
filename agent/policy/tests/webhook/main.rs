//! The webhook's answers: to pods of the injectors of Istio 1.1 and 1.5, to random pods, and to bodies
//! that are not an AdmissionReview.
//!
//! The random cases are the same in every run. `PROPTEST_RNG_SEED` selects others, and a larger
//! `PROPTEST_CASES` runs more of them.

mod check;
mod generate;

use std::cell::RefCell;

use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Value, json};
use sidetrack_policy::{
    mesh::Mesh,
    record::ANNOTATION,
    select::Enroll,
    webhook::{Outcome, Settings, answer},
};

use self::check::{Checked, check_answer};

const IMAGE: &str = "registry.example.com/sidetrack:1";
const ISTIO_1_1: &str = include_str!("../../../../tests/fuzz/seeds/webhook/istio-1.1.json");
const ISTIO_1_5: &str = include_str!("../../../../tests/fuzz/seeds/webhook/istio-1.5.json");
const NO_ANNOTATIONS: &str =
    include_str!("../../../../tests/fuzz/seeds/webhook/no-annotations.json");
const SCALE: &str = include_str!("../../../../tests/fuzz/seeds/webhook/scale.json");

fn reviewed(body: &str, enroll: Enroll, namespace_label: Option<&str>) -> Checked {
    let settings = Settings {
        mesh: &Mesh::new(enroll),
        namespace_label,
        image: IMAGE,
    };
    check_answer(body.as_bytes(), &settings).expect("an AdmissionReview")
}

fn labeled(body: &str) -> Checked {
    reviewed(body, Enroll::Labeled, None)
}

fn record(pod: &Value) -> Value {
    let text = pod["metadata"]["annotations"][ANNOTATION].as_str();
    serde_json::from_str(text.expect("the annotation")).expect("JSON")
}

/// A body with something changed in its pod.
fn with(body: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut body: Value = serde_json::from_str(body).expect("JSON");
    change(&mut body["request"]["object"]);
    body.to_string()
}

#[test]
fn istio_1_1() {
    let checked = labeled(ISTIO_1_1);
    assert_eq!(checked.outcome, Outcome::Changed);
    assert_eq!(
        checked.pod["spec"]["initContainers"],
        json!([{
            "name": "sidetrack-validation",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            // Istio 1.1 had one port for both directions.
            "args": ["validate", "--timeout=120", "--inbound-port=15001"],
            "resources": {
                "limits": {"cpu": "100m", "memory": "50Mi"},
                "requests": {"cpu": "10m", "memory": "10Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "runAsGroup": 1337,
                "runAsNonRoot": true,
                "runAsUser": 1337,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }])
    );
    assert_eq!(
        record(&checked.pod),
        json!({
            "words": ["-p", "15001", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "80", "-d", "15020"],
            "image": "gcr.io/istio-release/proxy_init:release-1.1-latest-daily",
        })
    );
}

#[test]
fn istio_1_5_by_its_namespace() {
    let untouched = labeled(ISTIO_1_5);
    assert_eq!(untouched.outcome, Outcome::Unchanged);
    let checked = reviewed(ISTIO_1_5, Enroll::Labeled, Some("enabled"));
    assert_eq!(checked.outcome, Outcome::Changed);
    let validation = &checked.pod["spec"]["initContainers"][0];
    assert_eq!(validation["args"], json!(["validate", "--timeout=120"]));
    assert_eq!(record(&checked.pod)["words"][0], "istio-iptables");
    let changed = reviewed(ISTIO_1_5, Enroll::Injected, None).pod;
    assert_eq!(changed, checked.pod);
}

#[test]
fn a_native_sidecar_and_no_annotations() {
    let checked = labeled(NO_ANNOTATIONS);
    assert_eq!(checked.outcome, Outcome::Changed);
    let validation = &checked.pod["spec"]["initContainers"][1];
    assert_eq!(
        validation["args"],
        json!([
            "validate",
            "--timeout=120",
            "--outbound-port=15002",
            "--inbound-port=15005"
        ])
    );
    let security = &validation["securityContext"];
    assert_eq!(
        (&security["runAsUser"], &security["runAsGroup"]),
        (&json!(1338), &json!(1339))
    );
    assert_eq!(
        record(&checked.pod)["env"],
        json!({"ISTIO_DUAL_STACK": "true"})
    );
    // Nothing is lost with istio-init.
    assert!(
        checked.response["warnings"].is_null(),
        "{}",
        checked.response
    );
}

#[test]
fn random_pods() {
    let met = RefCell::new([0_u32; 4]);
    let given = Config::default();
    let mut runner = TestRunner::new(Config {
        cases: given.cases.max(2048),
        rng_seed: match given.rng_seed {
            RngSeed::Random => RngSeed::Fixed(0),
            seed => seed,
        },
        failure_persistence: None,
        ..given
    });
    let enroll = proptest::sample::select(vec![Enroll::Labeled, Enroll::Injected]);
    let label = proptest::sample::select(vec![None, Some("enabled")]);
    let outcome = runner.run(
        &(generate::reviews(), enroll, label),
        |(body, enroll, label)| {
            let kind = match reviewed(&body.to_string(), enroll, label).outcome {
                Outcome::Unchanged => 0,
                Outcome::Changed => 1,
                Outcome::Refused(_) => 2,
                Outcome::Misconfigured(_) => 3,
            };
            met.borrow_mut()[kind] += 1;
            Ok(())
        },
    );
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let met = met.into_inner();
    assert!(met.iter().all(|count| *count > 50), "{met:?}");
}

#[test]
fn pods_that_opted_in_and_cannot_be_enrolled_get_a_warning() {
    for (change, expected) in [
        (json!(["-p", "0"]), "argument -p of istio-init"),
        (json!(["-m", "TPROXY", "-k", "virbr0"]), "TPROXY"),
        (json!(["-u", "4000000000"]), "largest is 2147483647"),
        // The validation container would wait forever.
        (json!(["-o", "15002"]), "never redirects it"),
        (json!(["-c", "lo"]), "never redirects it"),
        // As long as the policy allows, and too long for an annotation.
        (
            json!([
                "-x",
                vec!["2001:db8:1234:5678:9abc:def0::/96"; 8000].join(",")
            ]),
            "does not fit into an annotation",
        ),
    ] {
        let body = with(NO_ANNOTATIONS, |pod| {
            pod["spec"]["initContainers"][1]["args"] = change;
        });
        let checked = labeled(&body);
        let Outcome::Refused(reason) = &checked.outcome else {
            panic!("{:?}", checked.outcome);
        };
        assert!(reason.contains(expected), "{reason}");
        let warnings = checked.response["warnings"].to_string();
        assert!(warnings.contains("init container stays"), "{warnings}");
    }
    let conflicting = with(NO_ANNOTATIONS, |pod| {
        pod["spec"]["containers"][0]["name"] = "sidetrack-validation".into();
    });
    assert!(matches!(labeled(&conflicting).outcome, Outcome::Refused(_)));
}

#[test]
fn other_kinds_are_admitted_with_a_warning() {
    let checked = labeled(SCALE);
    assert!(matches!(checked.outcome, Outcome::Misconfigured(_)));
    let warnings = checked.response["warnings"].to_string();
    assert!(warnings.contains("\\\"Scale\\\""), "{warnings}");
    for (pointer, value) in [
        ("/request/operation", json!("DELETE")),
        ("/request/subResource", json!("eviction")),
        ("/request/object", Value::Null),
        ("/request/object", json!({"spec": {"containers": 7}})),
        ("/request/object", json!([])),
        (
            "/request/kind",
            json!({"group": "apps", "version": "v1", "kind": "Pod"}),
        ),
    ] {
        let mut body: Value = serde_json::from_str(NO_ANNOTATIONS).expect("JSON");
        let (place, field) = pointer.rsplit_once('/').expect("a field");
        body.pointer_mut(place).expect("its place")[field] = value;
        let checked = labeled(&body.to_string());
        assert!(
            matches!(checked.outcome, Outcome::Misconfigured(_)),
            "{pointer}"
        );
    }
}

#[test]
fn bodies_that_are_no_review_are_refused() {
    let mesh = Mesh::new(Enroll::Labeled);
    let settings = Settings {
        mesh: &mesh,
        namespace_label: None,
        image: IMAGE,
    };
    let review = |rest: &str| {
        format!("{{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v1\"{rest}}}")
    };
    for (body, expected) in [
        (String::new(), "not an AdmissionReview"),
        ("[]".to_owned(), "not an AdmissionReview"),
        ("{".to_owned(), "not an AdmissionReview"),
        ("[".repeat(100_000), "not an AdmissionReview"),
        ("{\"a\":".repeat(100_000), "opening braces"),
        (
            "[\"admission.k8s.io/v1\", \"AdmissionReview\", {\"uid\": \"1\"}]".to_owned(),
            "not made of objects",
        ),
        ("{}".to_owned(), "the body's kind is \"\""),
        (
            "{\"kind\":\"Pod\"}".to_owned(),
            "the body's kind is \"Pod\"",
        ),
        (
            "{\"kind\":\"AdmissionReview\",\"apiVersion\":\"admission.k8s.io/v2\"}".to_owned(),
            "send admission.k8s.io/v1 or admission.k8s.io/v1beta1",
        ),
        (review(""), "no request"),
        (review(",\"request\":{}"), "without uid"),
        (review(",\"request\":7"), "not an AdmissionReview"),
        (
            review(",\"request\":{\"uid\":\"\\ud800\"}"),
            "not an AdmissionReview",
        ),
    ] {
        let malformed = answer(body.as_bytes(), &settings).expect_err(expected);
        let text = malformed.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(text.len() < 1000 && !text.contains(char::is_control));
    }
    assert!(answer(b"\xff\xfe{}", &settings).is_err());
}

/// Every creation of a pod waits for the answer.
#[test]
fn a_pod_of_megabytes() {
    let body = with(NO_ANNOTATIONS, |pod| {
        pod["metadata"]["annotations"] = json!({"blob": "x".repeat(200 << 10)});
        pod["spec"]["containers"][0]["args"] = vec!["y"; 500_000].into();
    });
    assert!(body.len() > 2_000_000);
    let settings = Settings {
        mesh: &Mesh::new(Enroll::Labeled),
        namespace_label: None,
        image: IMAGE,
    };
    let start = std::time::Instant::now();
    let answer = answer(body.as_bytes(), &settings).expect("an answer");
    // Far more than it takes, far less than anything that grows faster than the body.
    assert!(start.elapsed().as_secs() < 10);
    assert_eq!(answer.outcome, Outcome::Changed);
}
