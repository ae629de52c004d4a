use std::time::Duration;

use super::{super::config::Config, send};
use sidetrack_reconcile::cni::Question;

/// What kubelet shows at a pod, of a plugin whose entry names the DaemonSet or does not.
fn said(more: &str) -> String {
    let config = format!(r#"{{"cniVersion": "1.0.0", "socket": "/nowhere/s.sock"{more}}}"#);
    let config = Config::parse(config.as_bytes()).unwrap();
    let error = send(&config, &Question::Status, Duration::from_secs(1)).unwrap_err();
    error.to_json()
}

#[test]
fn the_gate_and_the_command_are_named() {
    let text =
        said(r#", "daemonset": "mesh/tracker", "kubeconfig": "/etc/k", "nodeName": "node-1""#);
    assert!(
        text.contains("no agent answers on /nowhere/s.sock"),
        "{text}"
    );
    let cleanup = "`sidetrack-cni cleanup --socket /nowhere/s.sock --cni-conf-dir /etc`";
    assert!(text.contains(cleanup), "{text}");
    let gate =
        "kubectl -n mesh annotate --overwrite daemonset tracker sidetrack.dev/open-gate=node-1";
    assert!(text.contains(gate), "{text}");
    // A plugin that cannot ask the API server has no gate.
    assert!(!said("").contains("open-gate"));
}
