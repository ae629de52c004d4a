//! What is said in `deploy/` and must agree with what the agent does.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The agent's requests to the API server: verb, API group, resource.
pub const USED: [(&str, &str, &str); 13] = [
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "events.k8s.io", "events"),
    ("patch", "events.k8s.io", "events"),
    ("list", "", "namespaces"),
    ("watch", "", "namespaces"),
    ("list", "", "pods"),
    ("watch", "", "pods"),
    ("list", "node.k8s.io", "runtimeclasses"),
    ("watch", "node.k8s.io", "runtimeclasses"),
    ("list", "apps", "daemonsets"),
    ("watch", "apps", "daemonsets"),
    ("list", "", "configmaps"),
    ("watch", "", "configmaps"),
];

/// Its further requests when it is to remove its node's taint.
pub const USED_FOR_TAINT: [(&str, &str, &str); 2] = [("get", "", "nodes"), ("patch", "", "nodes")];

/// A path in the checkout, which is looked for at run time: one may be copied with its programs. cargo says where the
/// tests are; programs that it does not run are below the checkout, or beside a copy of `deploy`.
#[must_use]
pub fn checkout(path: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let starts = [cargo, std::env::current_exe().ok()];
    let is_checkout = |dir: &&Path| dir.join("deploy/kubernetes").is_dir();
    let mut above = starts.iter().flatten().flat_map(|path| path.ancestors());
    above.find(is_checkout).unwrap_or(Path::new(".")).join(path)
}

/// The plain manifests, without kustomize.
pub fn plain() -> Result<Vec<Value>> {
    let path = checkout("deploy/kubernetes/sidetrack.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}", path.display()))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("{}", path.display()))
}

/// Capabilities the DaemonSet gives the agent, as `BPF`.
pub fn capabilities() -> Result<Vec<String>> {
    let objects = plain()?;
    let daemonset = objects.iter().find(|object| object["kind"] == "DaemonSet");
    let container = &daemonset.context("a DaemonSet")?["spec"]["template"]["spec"]["containers"][0];
    let added = &container["securityContext"]["capabilities"]["add"];
    serde_json::from_value(added.clone()).context("capabilities of the DaemonSet")
}

/// Whether a test cannot run because this is a guest of `cargo xtask vm`, which lacks what the test needs; prints that it
/// is skipped. Anywhere else what is missing is a failure.
pub fn lacks(file: &str, what: &str) -> bool {
    let is_guest = std::env::var_os("SIDETRACK_TEST_IN_GUEST").is_some();
    if is_guest {
        eprintln!("{file}: skipped, a guest has no {what}");
    }
    is_guest
}
