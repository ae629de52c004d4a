//! Pods that may connect before their sidecar listens.

use anyhow::{Context as _, Result, ensure};
use lab::{
    injected::injected,
    node::{Node, VIP},
    protocol::{APP, Dial, PROXY, ROOT},
};
use serde_json::json;

use super::{PROXY_USER, validate};
use crate::fixture::at;

kernel_test!(before_the_sidecar);
/// Init containers of pods with the annotation reach the network until the sidecar first listens.
fn before_the_sidecar() -> Result<()> {
    let mut node = Node::new()?;
    let with = node.lab.uid(1);
    let mut pod = injected("with", &with);
    pod["metadata"]["annotations"]["sidetrack.dev/before-sidecar"] = json!("passthrough");
    node.api.apply(pod)?;
    let sandbox = node.ready("with", &with)?;
    let pod = sandbox.pod(&node.lab, &with)?;
    let client = pod.actor()?;
    let dial = || client.dial(Dial::new(&APP, at(VIP, 80)));
    let accepted = |result: Result<lab::protocol::Connected, i32>| {
        result.map(|connected| connected.accepted_by)
    };
    ensure!(accepted(dial()?) == Ok(80));
    // `validate` listens on the sidecar's ports, too; it is not the sidecar.
    let (code, text) = validate(&pod, PROXY_USER, &[])?;
    ensure!(code == 0, "{text}");
    ensure!(accepted(dial()?) == Ok(80));
    // Inbound connections are still redirected.
    let arrived = node
        .outside
        .dial(Dial::new(&ROOT, std::net::SocketAddr::new(pod.v4, 80)))?;
    ensure!(arrived.is_err(), "{arrived:?}");
    // Another agent changes nothing.
    node.agent = None;
    ensure!(accepted(dial()?) == Ok(80));
    node.start_agent()?;
    node.places().wait_enrolled("shop/with")?;
    ensure!(accepted(dial()?) == Ok(80));
    let row = node.places().pod("shop/with")?.context("the pod")?;
    ensure!(
        row["before_sidecar"] == true && row["connections"]["before_sidecar"] == 4,
        "{row}"
    );
    let explained = node.places().json(&[
        "explain",
        "shop/with",
        "outbound",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--dst",
        "10.109.118.31:80",
        "-o",
        "json",
    ])?;
    ensure!(
        explained["verdict"] == "untouched" && explained["name"] == "before-sidecar",
        "{explained}"
    );
    // The sidecar comes, and goes: never again.
    let sidecar = pod.actor()?;
    let listener = sidecar.listen(&PROXY, at("0.0.0.0", 15001))?;
    ensure!(accepted(dial()?) == Ok(15001));
    sidecar.close(listener, 0)?;
    ensure!(accepted(dial()?) == Err(111), "past a sidecar that is down");
    node.agent = None;
    node.start_agent()?;
    node.places().wait_enrolled("shop/with")?;
    ensure!(accepted(dial()?) == Err(111), "past a sidecar that is down");
    ensure!(node.places().map("BEFORE_SIDECAR")?.is_empty());

    drop((client, sidecar));
    node.end()
}

kernel_test!(before_the_sidecar_without_the_annotation);
/// Without the annotation connections are refused, as with iptables.
fn before_the_sidecar_without_the_annotation() -> Result<()> {
    let mut node = Node::new()?;
    let without = node.lab.uid(2);
    node.api.apply(injected("without", &without))?;
    let sandbox = node.ready("without", &without)?;
    let other = sandbox.pod(&node.lab, &without)?.actor()?;
    let dial = || -> Result<Result<u16, i32>> {
        let result = other.dial(Dial::new(&APP, at(VIP, 80)))?;
        Ok(result.map(|connected| connected.accepted_by))
    };
    ensure!(dial()? == Err(111));
    // The annotation has no effect on a pod that runs already.
    node.api.edit("Pod", "shop", "without", |pod| {
        pod["metadata"]["annotations"]["sidetrack.dev/before-sidecar"] = json!("passthrough");
    })?;
    node.places().wait_pod("shop/without", |pod| {
        pod.is_some_and(|pod| pod["policy"]["before_sidecar"] == true)
    })?;
    ensure!(dial()? == Err(111));
    drop(other);
    node.end()
}
