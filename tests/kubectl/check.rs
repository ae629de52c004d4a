//! What is found in a cluster before sidetrack is installed.

use anyhow::{Result, ensure};
use lab::injected::namespace;
use serde_json::json;

use crate::fixture::{Cluster, node_info};

/// A cluster with Istio, as its charts install it.
fn with_istio(cni: bool) -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.api.apply(json!({
        "kind": "Deployment",
        "metadata": {"name": "istiod", "namespace": "istio-system", "labels": {"app": "istiod", "istio.io/rev": "default"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": [
            {"name": "discovery", "image": "docker.io/istio/pilot:1.26.1"},
        ]}}},
    }))?;
    cluster.api.apply(json!({
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "istio-sidecar-injector", "labels": {"app": "sidecar-injector", "istio.io/rev": "default"}},
    }))?;
    cluster.api.apply(json!({
        "kind": "ConfigMap",
        "metadata": {"name": "istio-sidecar-injector", "namespace": "istio-system"},
        "data": {"values": json!({"pilot": {"cni": {"enabled": cni}}}).to_string()},
    }))?;
    Ok(cluster)
}

#[test]
fn a_cluster_that_is_ready() -> Result<()> {
    let cluster = with_istio(true)?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    let check = cluster.run(&["check"])?;
    ensure!(check.code == 0, "{check:?}");
    for expected in [
        "control plane: istio-system/istiod, revision default, version 1.26.1",
        "values.pilot.cni.enabled=true",
        "CNI node agent: none",
        "Cilium: not found",
    ] {
        ensure!(check.out.contains(expected), "{expected}: {}", check.out);
    }
    ensure!(!check.out.contains("notes:"), "{}", check.out);
    let report = cluster.run(&["check", "-o", "json"])?.json()?;
    ensure!(
        report["namespaces"]
            == json!([{"name": "shop", "sidecars": 1, "enrolled": 1, "rejected": 0}]),
        "{report}"
    );
    Ok(())
}

/// More than the API server is asked for at once.
#[test]
fn a_cluster_with_many_pods() -> Result<()> {
    const PODS: usize = 1001;
    let cluster = with_istio(true)?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    for number in 0..PODS {
        cluster.pod("shop", &format!("web-{number}"), Some("node-1"))?;
    }
    let report = cluster.run(&["check", "-o", "json"])?.json()?;
    ensure!(report["namespaces"][0]["sidecars"] == PODS, "{report}");
    Ok(())
}

#[test]
fn a_pod_is_evaluated_by_the_kernel_of_its_node() -> Result<()> {
    let cluster = with_istio(true)?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    cluster.api.apply(json!({
        "kind": "Node",
        "metadata": {"name": "node-2", "labels": {"kubernetes.io/os": "linux"}},
        "status": {"nodeInfo": node_info("5.15.0-105-generic")},
    }))?;
    for (name, node) in [("new", "node-1"), ("old", "node-2")] {
        cluster.pod("shop", name, Some(node))?;
        cluster.api.edit("Pod", "shop", name, |pod| {
            let mode = json!({"sidecar.istio.io/interceptionMode": "TPROXY"});
            pod["metadata"]["annotations"] = mode;
        })?;
    }
    let report = cluster.run(&["check", "-o", "json"])?.json()?;
    let problems = report["problems"].to_string();
    ensure!(
        problems.contains("pod shop/old: its interception mode is TPROXY, but")
            && !problems.contains("shop/new"),
        "{report}"
    );
    Ok(())
}

#[test]
fn what_is_in_the_way() -> Result<()> {
    let cluster = with_istio(false)?;
    cluster.api.apply(namespace("shop", None))?;
    cluster.api.apply(namespace("bank", Some("true")))?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.pod("shop", "old", Some("node-1"))?;
    cluster.api.edit("Pod", "shop", "old", |pod| {
        pod["metadata"]["annotations"] = json!({
            "sidecar.istio.io/interceptionMode": "TPROXY",
            "sidetrack.dev/dialect": "1.5",
        });
    })?;
    for (node, kernel) in [
        ("node-2", "5.10.0-35-amd64"),
        ("node-3", "5.15.0-105-generic"),
    ] {
        cluster.api.apply(json!({
            "kind": "Node", "metadata": {"name": node},
            "status": {"nodeInfo": node_info(kernel)},
        }))?;
    }
    cluster.api.apply(json!({
        "kind": "Node", "metadata": {"name": "windows", "labels": {"kubernetes.io/os": "windows"}},
    }))?;
    cluster
        .api
        .apply(json!({"kind": "Node", "metadata": {"name": "new"}}))?;
    cluster.api.apply(json!({
        "kind": "ConfigMap", "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true", "cluster-name": "default"},
    }))?;
    cluster.api.apply(json!({
        "kind": "DaemonSet",
        "metadata": {"name": "istio-cni-node", "namespace": "istio-system", "labels": {"k8s-app": "istio-cni-node"}},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "install-cni", "image": "istio/install-cni:1.26.1"}]}}},
    }))?;
    let check = cluster.run(&["check", "--enroll", "injected", "-o", "json"])?;
    let report = check.json()?;
    ensure!(check.code == 1, "{check:?}");
    let problems = report["problems"].to_string();
    ensure!(
        report["problems"].as_array().map(Vec::len) == Some(2),
        "{report}"
    );
    ensure!(
        problems.contains("node node-2 has Linux 5.10.0-35-amd64"),
        "{problems}"
    );
    ensure!(
        problems.contains("pod shop/old: its interception mode is TPROXY"),
        "{problems}"
    );
    let notes = report["notes"].to_string();
    for expected in [
        "injector istio-sidecar-injector adds istio-init",
        "Istio's CNI node agent istio-system/istio-cni-node programs iptables",
        "Cilium's socket load balancer works in pods",
        "set its cni.exclusive=false",
        "unknown: the kernel of node new",
        "of namespace bank is \\\"true\\\", which has no effect",
    ] {
        ensure!(notes.contains(expected), "{expected}: {notes}");
    }
    ensure!(
        report["nodes"].as_array().map(Vec::len) == Some(4),
        "{report}"
    );
    ensure!(
        report["nodes"][3]["restriction"]
            .to_string()
            .contains("names interfaces"),
        "{report}"
    );
    let labeled = cluster.run(&["check"])?;
    ensure!(
        labeled.out.contains("no namespace would change yet"),
        "{labeled:?}"
    );
    Ok(())
}

#[test]
fn what_may_not_be_read_is_unknown() -> Result<()> {
    let cluster = with_istio(true)?;
    for kind in ["Deployment", "ConfigMap", "DaemonSet"] {
        cluster.api.forbid(kind)?;
    }
    let check = cluster.run(&["check"])?;
    ensure!(check.code == 0, "{check:?}");
    for expected in [
        "control plane: unknown",
        "CNI node agent: unknown",
        "Cilium: unknown",
        "unknown: whether injector istio-sidecar-injector adds istio-init",
        "list deployments",
    ] {
        ensure!(check.out.contains(expected), "{expected}: {}", check.out);
    }
    Ok(())
}

#[test]
fn without_istio() -> Result<()> {
    let check = Cluster::new(&["node-1"])?.run(&["check"])?;
    ensure!(
        check.code == 0 && check.out.contains("no Istio was found"),
        "{check:?}"
    );
    Ok(())
}
