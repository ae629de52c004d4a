//! Pods in ambient mode start when ztunnel serves them.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use lab::{agent::is, injected::namespace, node::Node, wait::eventually, ztunnel::Ztunnel};
use serde_json::{Value, json};

/// A node whose agent serves ztunnel, and a namespace `shop` in ambient mode.
fn node() -> Result<(Node, PathBuf)> {
    let mut node = Node::new()?;
    node.agent = None;
    let mut shop = namespace("shop", None);
    shop["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "ambient"});
    node.api.apply(shop)?;
    node.start_agent_with(&["--ambient"])?;
    let socket = node.places().ztunnel_socket();
    Ok((node, socket))
}

fn pod(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "annotations": {}},
        "spec": {
            "nodeName": "node-1", "serviceAccountName": "cashier",
            "containers": [{"name": "app", "image": "httpbin"}],
        },
        "status": {"phase": "Pending"},
    })
}

/// Waits until the pod has the annotation by which istiod recognizes it, or not.
fn wait_annotation(node: &Node, name: &str, wanted: bool) -> Result<()> {
    eventually(Duration::from_secs(20), || {
        let pod = node.api.get("Pod", "shop", name)?;
        let value = &pod["metadata"]["annotations"]["ambient.istio.io/redirection"];
        ensure!((*value == "enabled") == wanted, "{pod}");
        Ok(())
    })
}

kernel_test!(pods_start_when_ztunnel_serves_them);
fn pods_start_when_ztunnel_serves_them() -> Result<()> {
    let (mut node, socket) = node()?;
    let uid = node.lab.uid(1);
    node.api.apply(pod("web", &uid))?;
    let error = node.failed("web", &uid)?.to_string();
    ensure!(error.contains("no ztunnel is connected"), "{error}");

    // A pod whose namespace is not at hand: an earlier agent may have named it.
    let ztunnel = Ztunnel::start(&socket)?;
    ensure!(ztunnel.acknowledge()? == format!("keep {uid}"));
    ensure!(ztunnel.acknowledge()? == "snapshot");
    let received = std::thread::spawn(move || -> Result<_> {
        let received = ztunnel.acknowledge()?;
        Ok((ztunnel, received))
    });
    let sandbox = node.ready("web", &uid)?;
    let (ztunnel, received) = received.join().expect("it does not panic")?;
    let inode = fs::metadata(format!("/run/netns/{}", sandbox.netns))?.ino();
    let wanted = format!("add shop/web of cashier {inode}");
    ensure!(received == wanted, "{received}, wanted {wanted}");
    wait_annotation(&node, "web", true)?;
    // Another pod may have its name by the time of the write.
    let patches = node.api.pod_patches();
    let all_of_it = patches.iter().all(|it| it["metadata"]["uid"] == uid);
    ensure!(!patches.is_empty() && all_of_it, "{patches:?}");

    let _app = sandbox.pod(&node.lab, &uid)?.actor()?;
    // Its agent is killed and comes again: ztunnel receives the pod before the end of the snapshot.
    node.agent = None;
    ensure!(ztunnel.is_closed()?);
    node.start_agent_with(&["--ambient"])?;
    let again = Ztunnel::start(&socket)?;
    let mut received = vec![again.acknowledge()?];
    while received.last() != Some(&wanted) {
        received.push(again.acknowledge()?);
    }
    ensure!(
        received[0] != "snapshot" && received.len() <= 3,
        "{received:?}"
    );
    if received.len() == 1 {
        ensure!(again.acknowledge()? == "snapshot");
    }

    // It is removed from the mesh.
    let mut out = node.api.get("Pod", "shop", "web")?;
    out["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
    node.api.apply(out)?;
    ensure!(again.acknowledge()? == format!("delete {uid}"));
    wait_annotation(&node, "web", false)?;
    node.places().wait_pod("shop/web", is("skipped", ""))?;
    node.runtime.delete(&mut node.lab, &sandbox)?;
    node.end()
}

kernel_test!(a_pod_that_ztunnel_cannot_serve_does_not_start);
fn a_pod_that_ztunnel_cannot_serve_does_not_start() -> Result<()> {
    let (mut node, socket) = node()?;
    let uid = node.lab.uid(1);
    let ztunnel = Ztunnel::start(&socket)?;
    ensure!(ztunnel.acknowledge()? == "snapshot");
    node.api.apply(pod("web", &uid))?;
    // The agent asks again, and gives up a ztunnel that does not answer.
    let refusing = std::thread::spawn(move || {
        while ztunnel.receive().is_ok() && ztunnel.answer("port 15001 is in use").is_ok() {}
    });
    // On a busy machine the first request ends before ztunnel's answer, and kubelet asks again.
    eventually(Duration::from_secs(30), || {
        let error = node.failed("web", &uid)?.to_string();
        ensure!(error.contains("port 15001 is in use"), "{error}");
        Ok(())
    })?;
    node.end()?;
    refusing.join().expect("it does not panic");
    Ok(())
}
