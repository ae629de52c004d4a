//! Pods start intercepted, or do not start.

use std::fs;

use anyhow::{Result, ensure};
use lab::{agent::is, injected::injected, node::Node};
use serde_json::{Value, json};

use super::status;
use crate::fixture::nothing_remains;

kernel_test!(pods_start_intercepted);
fn pods_start_intercepted() -> Result<()> {
    let mut node = Node::new()?;
    let mut running = Vec::new();
    for number in 1..=5 {
        let (name, uid) = (format!("web-{number}"), node.lab.uid(number));
        node.api.apply(injected(&name, &uid))?;
        let sandbox = node.ready(&name, &uid)?;
        let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
        ensure!(
            accepted == 15001,
            "{name}: the first connection went to {accepted}"
        );
        ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
        // The last plugin before ours is tuning, which passes on what it is given.
        ensure!(
            sandbox.result["interfaces"].is_array() && sandbox.result["cniVersion"] == "1.0.0",
            "{}",
            sandbox.result
        );
        running.push((name, actor, sandbox));
    }
    // A pod that is not opted in.
    let uid = node.lab.uid(6);
    let mut plain = injected("plain", &uid);
    plain["spec"]["containers"] = json!([{"name": "app", "image": "httpbin"}]);
    node.api.apply(plain)?;
    let sandbox = node.ready("plain", &uid)?;
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 80, "{accepted}");
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    drop(actor);
    node.runtime.delete(&mut node.lab, &sandbox)?;

    for (name, actor, sandbox) in running {
        drop(actor);
        node.runtime.delete(&mut node.lab, &sandbox)?;
        let again = node.runtime.ours("DEL", &sandbox)?;
        ensure!(again.status.success(), "twice: {again:?}");
        node.places()
            .wait_pod(&format!("shop/{name}"), is("waiting", ""))?;
        node.api.delete("Pod", "shop", &name)?;
    }
    nothing_remains(node.places())?;
    node.end()
}

kernel_test!(pods_that_must_not_start);
fn pods_that_must_not_start() -> Result<()> {
    let mut node = Node::new()?;
    let uid = node.lab.uid(1);
    let text = |error: &Value, parts: &[&str]| {
        let all = error.to_string();
        ensure!(parts.iter().all(|part| all.contains(part)), "{all}");
        ensure!(
            error["code"].is_u64() && error["cniVersion"] == "1.0.0",
            "{all}"
        );
        Ok(())
    };
    // The API server has not said anything about it.
    text(&node.failed("web", &uid)?, &["shop/web", "has not heard"])?;
    // It cannot be followed.
    let mut pod = injected("web", &uid);
    pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] = json!("http");
    node.api.apply(pod)?;
    text(
        &node.failed("web", &uid)?,
        &["shop/web", "must not start", "excludeOutboundPorts"],
    )?;
    // Another pod of that name.
    text(&node.failed("web", &node.lab.uid(9))?, &["has not heard"])?;
    // A pod that its istio-init intercepts starts, and CHECK leaves it alone.
    let other = node.lab.uid(2);
    let mut pod = injected("old", &other);
    pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NAT");
    pod["spec"]["initContainers"][0]["name"] = json!("istio-init");
    node.api.apply(pod)?;
    let sandbox = node.ready("old", &other)?;
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    // A static pod.
    node.ready("static", "0123456789abcdef0123456789abcdef")?;

    // One of those that need an agent.
    let needs = node.lab.uid(3);
    node.api.apply(injected("needs", &needs))?;
    let ours = node.ready("needs", &needs)?;

    // No agent answers.
    node.agent = None;
    node.api.apply(injected("web", &uid))?;
    text(
        &node.failed("web", &uid)?,
        &[
            "no agent answers",
            "sidetrack pod on this node",
            "sidetrack-cni cleanup",
        ],
    )?;
    ensure!(!node.runtime.ours("CHECK", &ours)?.status.success());
    // The node's network is not broken for that: kubelet would not even start an agent.
    ensure!(status(&node)?.status.success());
    // But what a node needs to have an agent.
    let list = node.runtime.list();
    let edited = fs::read_to_string(&list)?.replace("kube-system", "shop");
    fs::write(&list, edited)?;
    let sandbox = node.ready("web", &uid)?;
    // CRI-O sends CHECK at once.
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    node.end()
}
