//! Labels, annotations and deletion of a pod take effect at once.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::gone,
    deploy::USED,
    injected::injected,
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};
use serde_json::json;

use super::accepted_by;
use crate::fixture::{ClusterFixture, at, nothing_remains};

kernel_test!(labels_annotations_and_deletion);
fn labels_annotations_and_deletion() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    let pod = node
        .lab
        .pod("app", 2)?
        .under_kubelet(&node.lab, &node.lab.uid(1))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    let name = "shop/web";
    node.wait_enrollment(name, false)?;
    ensure!(accepted_by(&client)? == 80);

    // Established connections continue.
    let held = client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok(), "{held:?}");

    node.label("Namespace", "shop", Some("enabled"))?;
    node.wait_enrollment(name, true)?;
    ensure!(accepted_by(&client)? == 15001);
    let arrived = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(arrived.is_ok_and(|arrived| arrived.accepted_by == 15006));
    let row = node.places().pod(name)?.context("the pod")?;
    ensure!(
        row["uid"] == node.lab.uid(1) && row["policy"]["dialect"] == "1.8",
        "{row}"
    );

    // The pod's own label overrides the namespace's.
    node.label("Pod", "web", Some("disabled"))?;
    node.wait_enrollment(name, false)?;
    ensure!(accepted_by(&client)? == 80);
    node.label("Pod", "web", None)?;
    node.wait_enrollment(name, true)?;
    node.label("Namespace", "shop", None)?;
    node.wait_enrollment(name, false)?;
    node.label("Pod", "web", Some("enabled"))?;
    node.wait_enrollment(name, true)?;

    annotations(&node, &client)?;
    ensure!(client.echo()? == 1, "the established connection lives");

    // Deleted by force: as long as it runs it is intercepted.
    node.api.delete("Pod", "shop", "web")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("still runs"))
    })?;
    ensure!(accepted_by(&client)? == 15001);
    drop((client, sidecar));
    node.soon(name, gone)?;
    events_were_sent(&node)?;
    for request in node.api.requests() {
        let request = (request.verb, request.group, request.resource);
        ensure!(USED.contains(&request), "RBAC does not allow {request:?}");
    }
    nothing_remains(node.places())
}

/// Annotations change the policy; wrong ones keep the previous policy.
fn annotations(node: &ClusterFixture, client: &Actor) -> Result<()> {
    let name = "shop/web";
    let annotate = |value: &str| {
        node.api.edit("Pod", "shop", "web", |pod| {
            pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] =
                json!(value);
        })
    };
    annotate("80")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["policy"]["excluded_outbound_ports"] == json!([80]))
    })?;
    ensure!(accepted_by(client)? == 80);
    annotate("http")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| pod["reason"].to_string().contains("excludeOutboundPorts"))
    })?;
    ensure!(accepted_by(client)? == 80, "the previous policy stays");
    annotate("443")?;
    node.soon(name, |pod| {
        pod.is_some_and(|pod| {
            pod["reason"].is_null() && pod["policy"]["excluded_outbound_ports"] == json!([443])
        })
    })?;
    ensure!(accepted_by(client)? == 15001);
    Ok(())
}

fn events_were_sent(node: &ClusterFixture) -> Result<()> {
    let has = |reason: &str, note: &str| {
        node.api.events().iter().any(|event| {
            event["reason"] == reason
                && event["note"]
                    .as_str()
                    .is_some_and(|text| text.contains(note))
                && event["regarding"]["name"] == "web"
                && event["regarding"]["uid"] == node.lab.uid(1)
        })
    };
    for (reason, note) in [
        ("Enrolled", "dialect 1.8"),
        ("Released", "\"disabled\""),
        ("PolicyRejected", "the previous policy stays"),
        ("PolicyChanged", "another policy"),
    ] {
        eventually(Duration::from_secs(3), || {
            ensure!(
                has(reason, note),
                "no Event {reason}: {:?}\n{}",
                node.api.events(),
                node.places().log()
            );
            Ok(())
        })?;
    }
    Ok(())
}
