use std::fs;

use clap::Parser;
use sidetrack_policy::{
    manifest,
    mesh::Mesh,
    select::{Enroll, Wanted, wanted},
};

use super::OfflineFlags;

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    offline: OfflineFlags,
}

/// What an agent says of a pod whose namespace has no label.
fn of_agent(path: &std::path::Path, enroll: Enroll) -> String {
    let contents = manifest::read_templates(path).expect("a manifest");
    let selected = |label| wanted(&contents.0[0].pod, label, &Mesh::new(enroll));
    match (selected(None), selected(Some("enabled"))) {
        (Wanted::Enrolled(_), _) => "enrolled",
        (Wanted::Rejected(_), _) => "rejected",
        // No label of its namespace changes that.
        (Wanted::Skipped(_), Wanted::Skipped(_)) => "skipped",
        (Wanted::Skipped(_), _) => "not opted in",
    }
    .to_owned()
}

/// What `--manifest` says of it.
fn offline(path: &std::path::Path, enroll: &str) -> String {
    let flags = Flags::parse_from(["sidetrack", "--enroll", enroll]).offline;
    match flags.find(path, None) {
        Ok(pod) => match pod.enrollment.enrolled {
            Some(true) => "enrolled",
            Some(false) => "skipped",
            None => "not opted in",
        },
        Err(error) => match format!("{error:#}") {
            text if text.contains(": an agent would reject it: ") => "rejected",
            text if text.contains(" take it only if ") => "not opted in",
            text if text.contains(": no agent would take ") => "skipped",
            text => panic!("{text}"),
        },
    }
    .to_owned()
}

#[test]
fn manifests_are_decided_as_by_an_agent() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pod.yaml");
    let mut seen = std::collections::BTreeSet::new();
    for label in ["", "enabled", "disabled"] {
        for spec in [
            "",
            "runtimeClassName: gvisor",
            "runtimeClassName: kata-qemu",
            "runtimeClassName: nvidia",
            "hostNetwork: true",
        ] {
            for annotation in [
                "",
                "sidecar.istio.io/interceptionMode: NONE",
                "traffic.sidecar.istio.io/excludeOutboundPorts: mysql",
            ] {
                let label = match label {
                    "" => String::new(),
                    value => format!("sidetrack.dev/interception: {value}"),
                };
                let text = format!(
                    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: shop\n  labels: {{{label}}}\n  annotations: {{{annotation}}}\nspec:\n  {spec}\n  containers: [{{name: istio-proxy}}]\n"
                );
                fs::write(&path, &text).expect("written");
                for (enroll, word) in [(Enroll::Labeled, "labeled"), (Enroll::Injected, "injected")]
                {
                    let decided = offline(&path, word);
                    assert_eq!(decided, of_agent(&path, enroll), "{word}: {text}");
                    seen.insert(decided);
                }
            }
        }
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}
