//! Pods that start: with the CNI plugin in a chain of real plugins, and without it.

mod bad_input;
mod before_sidecar;
mod hanging;
mod identity;
mod install;
mod restart;
mod start;
mod taint;
mod uninstalled;
mod validation;
mod waits;
mod without_plugin;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::binary,
    network::PodNet,
    node::Node,
    runtime::{Sandbox, plugin},
};
use serde_json::{Value, json};

/// The sidecar's user.
const PROXY_USER: u32 = 1337;

/// The exit code and the output of `sidetrack validate` in a pod.
fn validate(pod: &PodNet, user: u32, more: &[&str]) -> Result<(i32, String)> {
    let words = [&["validate"], more].concat();
    let output = pod.command(user, &binary()?, &words).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code().context("a signal ended it")?,
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

fn collect(node: &Node, valid: &[&str]) -> Result<()> {
    let valid: Vec<Value> = valid
        .iter()
        .map(|id| json!({"containerID": id, "ifname": "eth0"}))
        .collect();
    let config = json!({
        "cniVersion": "1.1.0", "name": "lab", "type": "sidetrack-cni",
        "socket": node.places().socket, "cni.dev/valid-attachments": valid,
    });
    let output = plugin(&[("CNI_COMMAND", "GC")], config.to_string().as_bytes())?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

fn status(node: &Node) -> Result<std::process::Output> {
    let no_sandbox = Sandbox {
        netns: "none".to_owned(),
        container: "none".to_owned(),
        arguments: String::new(),
        result: Value::Null,
        took: Duration::ZERO,
    };
    node.runtime.ours("STATUS", &no_sandbox)
}
