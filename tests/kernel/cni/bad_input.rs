//! Bad input to the plugin and to the agent's socket.

use std::{fs, os::unix::fs::MetadataExt as _};

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Agent, network::Lab, runtime::plugin};
use serde_json::{Value, json};

/// Variables of one call of the plugin.
type Variables<'a> = Vec<(&'a str, &'a str)>;

kernel_test!(bad_input);
/// Whatever a runtime sends, the plugin and the agent answer with an error that explains it.
fn bad_input() -> Result<()> {
    let lab = Lab::new()?;
    let netns = lab.outside().path();
    let config = json!({
        "cniVersion": "1.0.0", "name": "n", "type": "sidetrack-cni",
        "socket": lab.dir().join("no-socket"), "timeoutSeconds": 1, "prevResult": {"cniVersion": "1.0.0"},
    });
    bad_configurations(&config, &netns)?;
    let config = config.to_string().into_bytes();
    bad_variables(&config, &netns)?;
    accepted_without_an_agent(&config, &netns)?;
    bad_requests(&lab, &netns)
}

/// A good ADD.
fn add(netns: &str) -> Variables<'_> {
    vec![
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", netns),
        ("CNI_IFNAME", "eth0"),
        (
            "CNI_ARGS",
            "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c",
        ),
        ("CNI_PATH", "/nowhere"),
    ]
}

fn without<'a>(netns: &'a str, name: &str) -> Variables<'a> {
    let mut variables = add(netns);
    variables.retain(|(key, _)| *key != name);
    variables
}

fn replaced<'a>(netns: &'a str, name: &'a str, value: &'a str) -> Variables<'a> {
    let mut variables = without(netns, name);
    variables.push((name, value));
    variables
}

/// Runs the plugin, and expects an error of this code that mentions this.
fn rejected(variables: &[(&str, &str)], stdin: &[u8], code: i32, part: &str) -> Result<()> {
    let output = plugin(variables, stdin)?;
    let said: Value =
        serde_json::from_slice(&output.stdout).with_context(|| format!("not JSON: {output:?}"))?;
    ensure!(
        !output.status.success() && said["code"] == code && said.to_string().contains(part),
        "wanted {code} and {part:?}: {output:?}"
    );
    Ok(())
}

fn bad_configurations(good: &Value, netns: &str) -> Result<()> {
    let with = |field: &str, value: Value| {
        let mut config = good.clone();
        config[field] = value;
        config.to_string().into_bytes()
    };
    let config = good.to_string().into_bytes();
    let mut garbage = vec![0_u8; 100_000];
    garbage
        .iter_mut()
        .zip(0_u32..)
        .for_each(|(byte, n)| *byte = ((n * 7) >> 3) as u8);
    let huge = vec![b' '; 5 << 20];
    let deep = "[".repeat(100_000).into_bytes();
    for (variables, stdin, code, part) in [
        (add(netns), &b""[..], 6, "stdin"),
        (add(netns), &garbage, 6, "stdin"),
        (add(netns), &huge, 6, "larger than"),
        (add(netns), &deep, 6, "stdin"),
        (add(netns), b"{}", 1, "version"),
        (add(netns), &with("cniVersion", json!("0.2.0")), 1, "0.2.0"),
        (add(netns), &with("cniVersion", json!(1)), 6, "invalid type"),
        (add(netns), &with("socket", Value::Null), 7, "socket"),
        (add(netns), &with("prevResult", Value::Null), 7, "chained"),
        (add(netns), &with("timeoutSeconds", json!(-1)), 6, "invalid"),
        (add(netns), &config, 11, "no agent answers"),
    ] {
        rejected(&variables, stdin, code, part)?;
    }
    Ok(())
}

fn bad_variables(config: &[u8], netns: &str) -> Result<()> {
    for (variables, code, part) in [
        (without(netns, "CNI_CONTAINERID"), 4, "CNI_CONTAINERID"),
        (without(netns, "CNI_NETNS"), 4, "CNI_NETNS"),
        (without(netns, "CNI_IFNAME"), 4, "CNI_IFNAME"),
        (replaced(netns, "CNI_COMMAND", "UPDATE"), 4, "UPDATE"),
        (replaced(netns, "CNI_CONTAINERID", "../x"), 4, "../x"),
        (
            replaced(netns, "CNI_NETNS", "/nowhere"),
            4,
            "does not exist",
        ),
        (
            replaced(netns, "CNI_NETNS", "/etc/passwd"),
            4,
            "no network namespace",
        ),
        (
            replaced(netns, "CNI_NETNS", "/dev/zero"),
            4,
            "no network namespace",
        ),
        (replaced(netns, "CNI_ARGS", "nonsense"), 4, "KEY=VALUE"),
        (
            replaced(netns, "CNI_ARGS", "K8S_POD_NAME=b"),
            4,
            "must have both",
        ),
        (
            replaced(netns, "CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
            4,
            "K8S_POD_UID",
        ),
    ] {
        rejected(&variables, config, code, part)?;
    }
    Ok(())
}

/// What is not a pod's, a DEL and a VERSION need no agent.
fn accepted_without_an_agent(config: &[u8], netns: &str) -> Result<()> {
    // Calls without a pod, and calls for the node's own network, succeed.
    for variables in [
        without(netns, "CNI_ARGS"),
        replaced(netns, "CNI_NETNS", "/proc/self/ns/net"),
    ] {
        let output = plugin(&variables, config)?;
        ensure!(
            output.status.success() && output.stdout == br#"{"cniVersion":"1.0.0"}"#,
            "{output:?}"
        );
    }
    // DEL always succeeds.
    let gone = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1")];
    ensure!(plugin(&gone, config)?.status.success());
    let said = plugin(&[("CNI_COMMAND", "VERSION")], b"")?;
    ensure!(
        String::from_utf8_lossy(&said.stdout).contains("1.1.0"),
        "{said:?}"
    );
    Ok(())
}

/// Bad input to the agent's own socket.
fn bad_requests(lab: &Lab, netns: &str) -> Result<()> {
    let agent = Agent::start(lab.places())?;
    for body in [
        "",
        "{",
        "[]",
        r#"{"command":"add"}"#,
        r#"{"command":"nothing"}"#,
        r#"{"command":"add","sandbox":{"netns":7}}"#,
    ] {
        let socket = lab.places().socket.display().to_string();
        let code = lab::command::run_words(&[
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--unix-socket",
            &socket,
            "-H",
            "content-type: application/json",
            "-d",
            body,
            "http://x/v1/sandboxes",
        ])?;
        ensure!(code.starts_with('4'), "{body:?}: {code}");
    }
    // The longest wait that can be asked for.
    let sandbox = json!({
        "namespace": "a", "name": "b", "uid": "c", "container": "d", "netns": netns,
        "inode": fs::metadata(netns)?.ino(), "descriptor": 0,
    });
    let patient =
        json!({"command": "add", "sandbox": sandbox, "patience": {"secs": u64::MAX, "nanos": 0}});
    let socket = lab.places().socket.display().to_string();
    let answer = lab::command::run_words(&[
        "curl",
        "-s",
        "--unix-socket",
        &socket,
        "-H",
        "content-type: application/json",
        "-d",
        &patient.to_string(),
        "http://x/v1/sandboxes",
    ])?;
    ensure!(answer.contains("no manifest names it"), "{answer}");
    ensure!(lab.places().json(&["status", "-o", "json"])?["agent"]["ready"] == true);
    drop(agent);
    Ok(())
}
