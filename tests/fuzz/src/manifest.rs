//! Manifest files: every text gives pods and problems, and every pod is selected or not.

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
                    documents.iter().for_each(check_document);
                    for problem in problems {
                        assert!(problem.origin.starts_with("fuzz."), "{problem:?}");
                        check_message(&problem.message);
                    }
                }
                Err(error) => check_message(&format!("{error:#}")),
            }
        }
    }
}

/// A message fits into a log and is safe to print.
fn check_message(message: &str) {
    assert!(!message.is_empty());
    assert!(message.len() < 3000, "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
}

fn check_document(document: &Document) {
    let name = document.name();
    assert_eq!(name.to_string().parse(), Ok(name), "{document:?}");
    match selected(&document.pod) {
        Wanted::Enrolled(found) => policy::check_policy(&found, &[]),
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

fn selected(pod: &Pod) -> Wanted {
    wanted(pod, None, &Mesh::new(Enroll::Injected))
}
