//! `kubectl sidetrack` and a real agent: the commands that run in the agent's container run here in its node.

use std::{process::Stdio, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::NODE,
    apiserver::exec::{Answer, End},
    command::die_with_parent,
    injected::injected,
    node::VIP,
    plugin,
    protocol::{APP, Dial},
    sidecar,
};
use serde_json::{Value, json};

use super::{accepted_by, labeled};
use crate::fixture::{ClusterFixture, at};

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
    node.wait_enrollment("shop/web", true)?;
    ensure!(accepted_by(&pod.actor()?)? == 15001);
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
    let client = pod.actor()?;
    let held = client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok_and(|it| it.accepted_by == 15001));
    let talks = json(&node, &["connections", "-n", "shop", "-o", "json"])?;
    let talk = &talks["talks"][0];
    ensure!(
        talks["talks"].as_array().map(Vec::len) == Some(1),
        "{talks}"
    );
    ensure!(
        talk["pod"] == "shop/web" && talk["destination"] == VIP,
        "{talks}"
    );
    ensure!(talk["port"] == 80 && talk["via"] == "sidecar", "{talks}");
    ensure!(
        talk["connections"] == 1 && talks["incomplete"] == json!([]),
        "{talks}"
    );
    let unknown = plugin::command(&node.api, &["nonsense", "shop/web"])?.output()?;
    ensure!(unknown.status.code() == Some(2), "{unknown:?}");
    Ok(())
}

kernel_test!(the_plugin_shows_live_what_an_agent_sees);
fn the_plugin_shows_live_what_an_agent_sees() -> Result<()> {
    let (node, _outside, pod) = labeled()?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    let running = json!({"running": {}});
    node.api.apply(plugin::agents_pod(NODE, &running))?;
    node.api.apply(injected("web", &node.lab.uid(1)))?;
    node.wait_enrollment("shop/web", true)?;
    let places = node.places().clone();
    node.api.on_exec(move |request| {
        let words: Vec<&str> = request.words.iter().map(String::as_str).collect();
        match places.command(&words[1..]) {
            Ok(command) => Answer::Stream(command),
            Err(error) => Answer::Output(Vec::new(), End::NotStarted(error.to_string())),
        }
    });
    let client = pod.actor()?;
    let words = ["trace", "-n", "shop", "--duration", "6s", "-o", "json"];
    let mut command = plugin::command(&node.api, &words)?;
    die_with_parent(&mut command);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let trace = command.spawn()?;
    sleep(Duration::from_secs(3));
    for _ in 0..5 {
        ensure!(accepted_by(&client)? == 15001);
    }
    let output = trace.wait_with_output()?;
    let (out, said) = (
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    );
    let summary = "1 of 1 node: 5 events: 5 redirect; none missing";
    ensure!(output.status.success() && said.contains(summary), "{said}");
    let line: Value = serde_json::from_str(out.lines().next().context("a line")?)?;
    ensure!(
        line["node"] == NODE && line["event"]["pod"] == "shop/web",
        "{line}"
    );
    let top = json(
        &node,
        &["top", "--once", "-A", "--interval", "200ms", "-o", "json"],
    )?;
    let (shown, pod) = (&top["nodes"][0], &top["nodes"][0]["pods"][0]);
    ensure!(shown["node"] == NODE && shown["origin"] == "agent", "{top}");
    ensure!(pod["name"] == "web" && pod["sidecar"] == "up", "{top}");
    ensure!(pod["connections"]["outbound_redirected"] == 5, "{top}");
    ensure!(pod["per_second"]["outbound_redirected"] == 0.0, "{top}");
    Ok(())
}

fn json(node: &ClusterFixture, words: &[&str]) -> Result<Value> {
    let output = plugin::command(&node.api, words)?.output()?;
    ensure!(output.status.success(), "{words:?}: {output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}
