//! Looks at the nodes themselves, through a pod on each with the node's network, processes and files.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{
    kubectl::{Kubectl, namespace},
    mesh::IDLE,
};

/// The namespace of the pods that look.
pub const NAMESPACE: &str = "sidetrack-e2e-node";

/// Prints what is on a node of sidetrack, one line each. The first process is the node's.
const TRACES: &str = r#"
export PROGRAMS
nsenter -t 1 -m -- sh -c '
  find /sys/fs/bpf/sidetrack -type f 2>/dev/null | sed "s/^/pin /"
  grep -l sidetrack-cni /etc/cni/net.d/*.conf* /etc/cni/net.d/*.json 2>/dev/null | sed "s/^/CNI entry in /"
  ls /etc/cni/net.d/sidetrack-cni.kubeconfig 2>/dev/null | sed "s/^/credentials /"
  ls /run/sidetrack/sidetrack.sock 2>/dev/null | sed "s/^/socket /"
  [ -n "$PROGRAMS" ] && command -v bpftool > /dev/null && bpftool prog list 2>/dev/null | grep -o "name st_[a-z0-9_]*" | sort | uniq -c | sed "s/^/program /"
'
true
"#;

/// The pods that look.
pub fn manifests(image: &str, shared_kernel: bool) -> Vec<Value> {
    let labels = json!({"app": "node"});
    vec![
        namespace(NAMESPACE),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "node", "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        // Starts whatever the network's plugins do.
                        "hostNetwork": true, "hostPID": true,
                        "terminationGracePeriodSeconds": 0,
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{
                            "name": "look", "image": image, "imagePullPolicy": "IfNotPresent",
                            "command": IDLE,
                            "env": [{"name": "PROGRAMS", "value": if shared_kernel { "" } else { "1" }}],
                            "securityContext": {"privileged": true, "runAsUser": 0},
                        }],
                    },
                },
            },
        }),
    ]
}

/// Runs a shell on every node; what it prints, all together.
pub fn run_everywhere(kube: &Kubectl, script: &str) -> Result<String> {
    Ok(run_on_each(kube, script)?.into_values().collect())
}

/// Runs a shell on every node; what it prints, by the node's name.
pub fn run_on_each(kube: &Kubectl, script: &str) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for pod in kube.items(&["-n", NAMESPACE, "pods"])? {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let node = pod["spec"]["nodeName"].as_str().context("a node")?;
        let text = kube.shell(NAMESPACE, name, "look", script)?;
        texts.insert(node.to_owned(), text);
    }
    Ok(texts)
}

/// What remains of sidetrack on the nodes, a line each.
pub fn traces(kube: &Kubectl) -> Result<Vec<String>> {
    Ok(run_everywhere(kube, TRACES)?
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect())
}

/// Waits until nothing remains.
pub fn wait_clean(kube: &Kubectl, patience: Duration) -> Result<()> {
    kube.wait("the nodes are clean", patience, |kube| {
        let traces = traces(kube)?;
        anyhow::ensure!(traces.is_empty(), "{}", traces.join("; "));
        Ok(Some(()))
    })
}

/// Kills the agents without notice.
pub fn kill_agents(kube: &Kubectl) -> Result<()> {
    run_everywhere(kube, "pkill -9 -f '^[^ ]*sidetrack agent'; true").map(drop)
}
