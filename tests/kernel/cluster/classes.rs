//! Pods whose runtime class is a sandbox under another name.

use anyhow::{Result, ensure};
use lab::{injected::injected, sidecar};
use serde_json::json;

use super::{accepted_by, labeled};
use crate::fixture::nothing_remains;

kernel_test!(the_handler_of_a_runtime_class_decides);
fn the_handler_of_a_runtime_class_decides() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    let class = |handler: &str| {
        node.api.apply(json!({
            "kind": "RuntimeClass", "metadata": {"name": "secure"}, "handler": handler,
        }))
    };
    class("kata-qemu")?;
    let mut object = injected("web", &node.lab.uid(1));
    object["spec"]["runtimeClassName"] = json!("secure");
    node.api.apply(object)?;
    let name = "shop/web";
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("whose handler is"))
    })?;
    ensure!(accepted_by(&client)? == 80);
    // Another handler: the class is followed.
    class("crun")?;
    node.wait_enrollment(name, true)?;
    ensure!(accepted_by(&client)? == 15001);
    drop((client, sidecar));
    node.api.delete("Pod", "shop", "web")?;
    node.soon(name, |pod| pod.is_none())?;
    nothing_remains(node.places())
}
