//! `kubectl sidetrack` and a real agent: the commands that run in the agent's container run here in its node.

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::NODE,
    apiserver::exec::{Answer, End},
    injected::injected,
    plugin, sidecar,
};
use serde_json::{Value, json};

use super::{labeled, taken_by};
use crate::fixture::ClusterFixture;

kernel_test!(the_plugin_understands_an_agent);
fn the_plugin_understands_an_agent() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    node.api.apply(json!({
        "kind": "Node", "metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}},
    }))?;
    let running = json!({"running": {}});
    node.api.apply(plugin::agents_pod(NODE, &running))?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.is_taken("shop/web", true)?;
    ensure!(taken_by(&pod.actor()?)? == 15001);
    let places = node.places().clone();
    node.api.on_exec(move |request| {
        let words: Vec<&str> = request.words.iter().map(String::as_str).collect();
        match places.command(&words[1..]) {
            Ok(command) => Answer::Run(command),
            Err(error) => Answer::Output(Vec::new(), End::NotStarted(error.to_string())),
        }
    });

    let pods = json(&node, &["pods", "-n", "shop", "-o", "json"])?;
    let own = node.places().pod("shop/web")?.context("the pod")?;
    let row = &pods["pods"][0];
    ensure!(row["node"] == NODE && row["labeled"] == true, "{pods}");
    ensure!(
        row["netns"] == own["netns"] && row["state"] == "enrolled",
        "{pods}"
    );
    ensure!(row["connections"]["outbound_redirected"] == 1, "{pods}");

    let status = json(&node, &["status", "-o", "json"])?;
    let shown = &status["nodes"][0];
    ensure!(
        shown["state"] == "ready" && shown["pods"]["enrolled"] == 1,
        "{status}"
    );
    ensure!(shown["version"] == env!("CARGO_PKG_VERSION"), "{status}");
    ensure!(status["not_intercepted"] == json!([]), "{status}");

    let doctor = json(&node, &["doctor", "-o", "json"])?;
    ensure!(doctor[0]["report"]["ok"] == true, "{doctor}");

    let rules = json(&node, &["rules", "shop/web", "-o", "json"])?;
    let direct = node.places().json(&["rules", "shop/web", "-o", "json"])?;
    ensure!(rules == direct, "{rules}");
    let words = [
        "outbound",
        "--uid",
        "0",
        "--gid",
        "0",
        "--dst",
        "10.0.0.9:80",
    ];
    let explain = [
        ["explain", "-n", "shop", "web"].as_slice(),
        &words,
        &["-o", "json"],
    ]
    .concat();
    ensure!(json(&node, &explain)?["verdict"] == "redirect");
    let unknown = plugin::command(&node.api, &["nonsense", "shop/web"])?.output()?;
    ensure!(unknown.status.code() == Some(2), "{unknown:?}");
    Ok(())
}

fn json(node: &ClusterFixture, words: &[&str]) -> Result<Value> {
    let output = plugin::command(&node.api, words)?.output()?;
    ensure!(output.status.success(), "{words:?}: {output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}
