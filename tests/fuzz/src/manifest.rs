//! Manifest files: whatever is in one, reading it ends with pods and problems, and every pod with
//! an answer.

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use sidetrack_policy::{
    manifest::{self as manifests, Document},
    mesh::Mesh,
    select::{Enroll, Wanted, wanted},
};

use super::policy;

/// Checks one input, as YAML and as JSON, as pods and as workloads.
pub fn check(input: &[u8]) {
    // A file that is not UTF-8 is refused when it is read.
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    for path in ["fuzz.yaml", "fuzz.json"].map(Path::new) {
        for parse in [manifests::parse_pods, manifests::parse_templates] {
            match parse(path, text) {
                Ok((documents, problems)) => {
                    documents.iter().for_each(document_holds);
                    for problem in problems {
                        assert!(problem.origin.starts_with("fuzz."), "{problem:?}");
                        message_holds(&problem.message);
                    }
                }
                Err(error) => message_holds(&format!("{error:#}")),
            }
        }
    }
}

/// It fits into a log, and a terminal can show it.
fn message_holds(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() < 3000, "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
}

fn document_holds(document: &Document) {
    let name = document.name();
    assert_eq!(name.to_string().parse(), Ok(name), "{document:?}");
    match judge(&document.pod) {
        Wanted::Enrolled(found) => policy::holds(&found, &[]),
        Wanted::NotTaken(reason) => assert!(!reason.to_string().is_empty()),
        Wanted::Rejected(reason) => assert!(!reason.to_string().is_empty()),
    }
    let json = serde_json::to_string(&document.pod).expect("a pod can be written");
    let (again, problems) =
        manifests::parse_pods(Path::new("again.json"), &json).expect("it is JSON");
    assert_eq!(problems, [], "{json}");
    let pods: Vec<&Pod> = again.iter().map(|document| &document.pod).collect();
    assert_eq!(pods, [&document.pod], "{json}");
}

fn judge(pod: &Pod) -> Wanted {
    wanted(pod, None, &Mesh::new(Enroll::Injected))
}
