//! The plugin's entry in the network configuration.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{node::Node, wait::eventually};
use serde_json::Value;

kernel_test!(the_plugin_is_kept_and_removed);
fn the_plugin_is_kept_and_removed() -> Result<()> {
    let mut node = Node::new()?;
    let list = node.runtime.list();
    let ours = fs::read_to_string(&list)?;
    let theirs = {
        let mut config = node.runtime.read()?;
        config["plugins"].as_array_mut().context("plugins")?.pop();
        config.to_string()
    };
    for _ in 0..3 {
        fs::write(&list, &theirs)?;
        node.wait_plugin(true)?;
    }
    ensure!(
        fs::read_to_string(&list)?
            .contains("\"excludeNamespaces\":[\"kube-system\",\"sidetrack-system\"]")
    );
    // What cannot be read is a problem that people see, and stays untouched.
    fs::write(&list, "{")?;
    eventually(Duration::from_secs(5), || {
        ensure!(
            node.places().json(&["status", "-o", "json"])?["agent"]["problems"]
                .to_string()
                .contains("CNI plugin"),
            "no problem is shown"
        );
        Ok(())
    })?;
    ensure!(fs::read_to_string(&list)? == "{");
    fs::write(&list, &ours)?;
    node.wait_plugin(true)?;

    drop(node.agent.take());
    node.wait_plugin(true)?;
    node.runtime.install(&node.lab, &["--remove"])?;
    node.wait_plugin(false)?;
    let remaining: Value = serde_json::from_str(&fs::read_to_string(&list)?)?;
    ensure!(
        remaining == serde_json::from_str::<Value>(&theirs)?,
        "{remaining}"
    );
    ensure!(!fs::exists(format!(
        "{}/sidetrack-cni",
        node.runtime.bin()
    ))?);
    node.end()
}
