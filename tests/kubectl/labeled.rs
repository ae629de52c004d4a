//! Pods that are labeled and not intercepted, with the reason.

use anyhow::{Context as _, Result, ensure};
use lab::injected::{LABEL, namespace};
use serde_json::{Value, json};
use sidetrack::api::PodState;

use crate::fixture::{Agent, Cluster, known};

#[test]
fn each_has_its_reason() -> Result<()> {
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    cluster.api.apply(namespace("bank", None))?;
    let agent = [
        known("shop", "fine", PodState::Enrolled),
        known("shop", "rejected", PodState::Rejected),
    ];
    cluster.agent("node-1", Agent::with(&agent))?;
    for (namespace, name, node) in [
        ("shop", "fine", Some("node-1")),
        ("shop", "rejected", Some("node-1")),
        ("shop", "forgotten", Some("node-1")),
        ("shop", "elsewhere", Some("node-2")),
        ("shop", "unscheduled", None),
        ("shop", "bare", Some("node-2")),
        ("shop", "out", Some("node-2")),
        ("bank", "unlabeled", Some("node-2")),
        ("bank", "typo", Some("node-2")),
        ("bank", "own", Some("node-2")),
    ] {
        cluster.pod(namespace, name, node)?;
    }
    cluster.api.edit("Pod", "shop", "bare", |pod| {
        pod["spec"]["containers"].as_array_mut().map(Vec::pop);
    })?;
    for (namespace, name, label) in [
        ("shop", "out", "disabled"),
        ("bank", "typo", "enable"),
        ("bank", "own", "enabled"),
    ] {
        cluster.api.edit("Pod", namespace, name, |pod| {
            pod["metadata"]["labels"][LABEL] = json!(label);
        })?;
    }
    let report = cluster.run(&["status", "-o", "json"])?.json()?;
    let list = |name: &str| -> Result<Vec<(String, String, String)>> {
        let pods = report[name].as_array().context("a list")?;
        let own =
            |pod: &Value| ["name", "state", "reason"].map(|field| text(pod, field).to_owned());
        Ok(pods.iter().map(|pod| own(pod).into()).collect())
    };
    let expected = |all: &[(&str, &str, &str)]| -> Vec<(String, String, String)> {
        let own = |(name, state, reason): &(&str, &str, &str)| {
            (
                (*name).to_owned(),
                (*state).to_owned(),
                (*reason).to_owned(),
            )
        };
        all.iter().map(own).collect()
    };
    let found = list("not_known")?;
    let unknown = expected(&[
        ("own", "no-agent", "node node-2 has no agent"),
        ("elsewhere", "no-agent", "node node-2 has no agent"),
    ]);
    ensure!(found == unknown, "{found:#?}");
    let found = list("not_intercepted")?;
    let missed = expected(&[
        (
            "typo",
            "skipped",
            "label sidetrack.dev/interception is \"enable\" on the pod; write \"enabled\" or \"disabled\"",
        ),
        (
            "bare",
            "skipped",
            "it has no sidecar (a container named istio-proxy, linkerd-proxy, kuma-sidecar or consul-dataplane)",
        ),
        (
            "forgotten",
            "not-listed",
            "the agent of node-1 does not know it",
        ),
        ("rejected", "rejected", "rejected has its reasons"),
        ("unscheduled", "unscheduled", "it has no node yet"),
    ]);
    ensure!(found == missed, "{found:#?}");
    Ok(())
}

/// Without an agent's word an earlier policy may be in force; what is skipped is nothing wrong.
#[test]
fn sections_of_what_is_not_intercepted() -> Result<()> {
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    let rejected = known("shop", "rejected", PodState::Rejected);
    cluster.agent("node-1", Agent::with(&[rejected]))?;
    for (name, node) in [
        ("rejected", "node-1"),
        ("bare", "node-2"),
        ("wrong", "node-2"),
    ] {
        cluster.pod("shop", name, Some(node))?;
    }
    cluster.api.edit("Pod", "shop", "bare", |pod| {
        pod["spec"]["containers"].as_array_mut().map(Vec::pop);
    })?;
    cluster.api.edit("Pod", "shop", "wrong", |pod| {
        let bad = json!({"traffic.sidecar.istio.io/excludeOutboundPorts": "redis"});
        pod["metadata"]["annotations"] = bad;
    })?;
    let shown = cluster.run(&["status"])?.out;
    let of = |title: &str| {
        let rest = shown.split(title).nth(1).unwrap_or_default();
        rest.split("\n\n").next().unwrap_or_default()
    };
    let wrong = of("labeled and not intercepted");
    ensure!(
        wrong.contains("shop/rejected") && !wrong.contains("shop/bare"),
        "{shown}"
    );
    ensure!(of("labeled and skipped").contains("shop/bare"), "{shown}");
    let unknown = of("no agent says");
    let begin = "shop/wrong (no-agent): node node-2 has no agent; it would be rejected: annotation";
    ensure!(unknown.contains(begin), "{shown}");
    Ok(())
}

#[test]
fn a_reason_that_an_agent_has_as_well_is_said_once() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.api.apply(namespace("shop", Some("enabled")))?;
    let agent = [known("shop", "web", PodState::Rejected)];
    cluster.agent("node-1", Agent::with(&agent))?;
    cluster.pod("shop", "web", Some("node-1"))?;
    let report = cluster.run(&["status", "-o", "json"])?.json()?;
    let problems = json!(["node-1: pod shop/web: web has its reasons"]);
    ensure!(report["problems"] == problems, "{report}");
    let shown = cluster.run(&["status"])?.out;
    let said = shown.matches("web has its reasons").count();
    ensure!(said == 1, "{shown}");
    Ok(())
}

#[test]
fn agents_that_enroll_every_sidecar_need_no_label() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.api.apply(namespace("bank", None))?;
    cluster.pod("bank", "web-0", Some("node-1"))?;
    cluster.agent("node-1", Agent::with(&[]))?;
    let missed = |cluster: &Cluster| {
        let report = cluster.run(&["status", "-o", "json"])?.json()?;
        anyhow::Ok(report["not_intercepted"].as_array().map(Vec::len))
    };
    ensure!(missed(&cluster)? == Some(0));
    cluster
        .api
        .edit("Pod", "sidetrack-system", "sidetrack-node-1", |pod| {
            pod["spec"]["containers"][0]["args"] = json!(["agent", "--enroll=injected"]);
        })?;
    ensure!(missed(&cluster)? == Some(1));
    Ok(())
}

fn text<'a>(pod: &'a Value, field: &str) -> &'a str {
    pod[field].as_str().unwrap_or_default()
}
