//! Manifest files: every text gives pods and problems, and every pod is selected or not.

use std::path::Path;

use sidetrack_policy::{
    facts::{MAX_POD_BYTES, PodFacts},
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
        Wanted::Skipped(reason) => assert!(!reason.to_string().is_empty()),
        Wanted::Rejected(reason) => assert!(!reason.to_string().is_empty()),
    }
    assert!(document.pod.bytes() <= MAX_POD_BYTES + 1024, "{document:?}");
}

fn selected(pod: &PodFacts) -> Wanted {
    wanted(pod, None, &Mesh::new(Enroll::Injected))
}
