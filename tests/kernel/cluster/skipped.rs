//! Pods that are not enrolled, and the reason the agent gives.

use anyhow::{Context as _, Result, ensure};
use lab::agent::is;
use lab::injected::{LABEL, injected};
use serde_json::{Value, json};

use super::labeled;
use crate::fixture::ClusterFixture;

kernel_test!(pods_that_are_skipped);
fn pods_that_are_skipped() -> Result<()> {
    let node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let edits = edits();
    for (number, (name, edit, _)) in edits.iter().enumerate() {
        let mut pod = injected(name, &node.lab.uid(number));
        edit(&mut pod);
        node.api.apply(pod)?;
    }
    // A tenant cannot name a namespace.
    let mut tricky = injected("tricky", &node.lab.uid(20));
    tricky["metadata"]["annotations"]["sidetrack.dev/netns"] = json!("/proc/1/ns/net");
    node.api.apply(tricky)?;
    // Of another node.
    let mut elsewhere = injected("elsewhere", &node.lab.uid(21));
    elsewhere["spec"]["nodeName"] = json!("node-2");
    node.api.apply(elsewhere)?;
    let mut native = injected("native", &node.lab.uid(22));
    let sidecar = native["spec"]["containers"]
        .as_array_mut()
        .and_then(Vec::pop);
    let mut sidecar = sidecar.context("a sidecar")?;
    sidecar["restartPolicy"] = json!("Always");
    native["spec"]["initContainers"]
        .as_array_mut()
        .context("init containers")?
        .push(sidecar);
    node.api.apply(native)?;
    for (name, _, reason) in edits {
        node.soon(&format!("shop/{name}"), is("skipped", reason))?;
    }
    for name in ["tricky", "native"] {
        node.soon(&format!("shop/{name}"), is("waiting", "no process"))?;
    }
    ensure!(node.places().pod("shop/elsewhere")?.is_none());
    Ok(())
}

kernel_test!(sandboxed_pods_are_rejected);
/// Sockets in a sandbox are not the node's: such a pod would be shown as enrolled, and bypass its sidecar.
fn sandboxed_pods_are_rejected() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let _client = pod.actor()?;
    let mut object = injected("web", &pod.uid);
    object["spec"]["runtimeClassName"] = json!("gvisor");
    node.api.apply(object)?;
    node.soon("shop/web", is("rejected", "gvisor"))?;
    node.api.delete("Pod", "shop", "web")?;
    node.api.apply(injected("web", &pod.uid))?;
    node.wait_enrollment("shop/web", true)
}

/// A change to an injected pod.
type Edit = fn(&mut Value);

/// A pod's name, what makes it one that is not enrolled, and what the reason mentions.
fn edits() -> [(&'static str, Edit, &'static str); 6] {
    [
        (
            "host",
            |pod| pod["spec"]["hostNetwork"] = json!(true),
            "host's network",
        ),
        (
            "bare",
            |pod| {
                pod["spec"]["containers"].as_array_mut().map(Vec::pop);
            },
            "no sidecar",
        ),
        (
            "gateway",
            |pod| {
                pod["spec"]["containers"][1]["args"] = json!(["proxy", "router", "--domain", "x"])
            },
            "gateway",
        ),
        (
            "refuses",
            |pod| pod["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("false"),
            "sidecar.istio.io/inject",
        ),
        (
            "none",
            |pod| {
                pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE")
            },
            "NONE",
        ),
        (
            "out",
            |pod| pod["metadata"]["labels"][LABEL] = json!("disabled"),
            "disabled",
        ),
    ]
}
