//! One archive of a cluster, and what is not in it; and what sidetrack costs.

use std::{path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sidetrack::api::PodState;

use crate::fixture::{Agent, Cluster, known};

/// What must not leave the cluster.
const SECRET: &str = "hunter2";

/// An agent that answers as one does; it does not recognize questions of later versions.
fn agent() -> Result<Agent> {
    let pods = serde_json::to_string(&[known("shop", "web-0", PodState::Enrolled)])?;
    Ok(Agent::Script(format!(
        "case $2 in pods) echo '{pods}';; status) echo '{{}}';; cost) echo '{{\"enrolled\": 1, \"maps\": [{{\"bytes\": 9437184}}], \"maps_exact\": true, \"agent\": {{\"resident_bytes\": 17825792}}, \"processors\": 0.004}}';; doctor) echo '{{}}';; *) echo \"error: unrecognized subcommand\" >&2; exit 2;; esac"
    )))
}

fn cluster() -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster.pod("shop", "web-0", Some("node-1"))?;
    cluster.api.edit("Pod", "shop", "web-0", |pod| {
        pod["metadata"]["annotations"] = json!({
            "traffic.sidecar.istio.io/excludeOutboundPorts": "3306",
            "example.com/token": SECRET,
        });
        pod["spec"]["containers"][0]["env"] = json!([{"name": "PASSWORD", "value": SECRET}]);
        pod["spec"]["containers"][1]["env"] = json!([{"name": "ISTIO_META", "value": SECRET}]);
    })?;
    cluster.agent("node-1", agent()?)?;
    cluster.agent_pod("node-2", json!({"waiting": {"reason": "CrashLoopBackOff"}}))?;
    for node in ["node-1", "node-2"] {
        let name = format!("sidetrack-{node}");
        cluster.api.edit("Pod", "sidetrack-system", &name, |pod| {
            pod["metadata"]["annotations"] = json!({"example.com/token": SECRET});
            pod["spec"]["containers"][0]["env"] = json!([{"name": "TOKEN", "value": SECRET}]);
        })?;
    }
    Ok(cluster)
}

/// A file of an archive.
fn read(archive: &Path, file: &str) -> Result<String> {
    let output = Command::new("tar")
        .arg("--to-stdout")
        .arg("-xf")
        .arg(archive)
        .arg(file)
        .output()?;
    ensure!(output.status.success(), "{file}: {output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn an_archive_without_secrets() -> Result<()> {
    let cluster = cluster()?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("report.tar");
    let words = ["bug-report", "--file", path.to_str().context("a path")?];
    let ended = cluster.run(&words)?;
    // What is missing is a problem, and the rest is there.
    ensure!(ended.code == 1, "{ended:?}");
    for problem in [
        "node node-1: connections.json: exited with 2: error: unrecognized subcommand",
        "node node-2: the agent's container waits: CrashLoopBackOff",
    ] {
        ensure!(ended.errors.contains(problem), "{ended:?}");
        ensure!(read(&path, "sidetrack-bug-report/problems.txt")?.contains(problem));
    }
    let pods: Value = serde_json::from_str(&read(&path, "sidetrack-bug-report/pods.json")?)?;
    ensure!(
        pods[0]["annotations"] == json!({"traffic.sidecar.istio.io/excludeOutboundPorts": "3306"}),
        "{pods}"
    );
    let nodes = read(&path, "sidetrack-bug-report/nodes.json")?;
    ensure!(nodes.contains("6.1.0-30-amd64"), "{nodes}");
    let agents = read(&path, "sidetrack-bug-report/agents.json")?;
    ensure!(agents.contains("--enroll=labeled"), "{agents}");
    for node in ["node-1", "node-2"] {
        let log = read(
            &path,
            &format!("sidetrack-bug-report/nodes/{node}/agent.log"),
        )?;
        let begins = log.starts_with(&format!("the log of sidetrack-{node}\n"));
        // The node sends more than it was asked for.
        ensure!(begins && log.len() == 4 << 20, "{} bytes", log.len());
    }
    let own = read(&path, "sidetrack-bug-report/nodes/node-1/pods.json")?;
    ensure!(own.contains("web-0"), "{own}");
    let archive = std::fs::read(&path)?;
    let is_in = |text: &str| {
        archive
            .windows(text.len())
            .any(|bytes| bytes == text.as_bytes())
    };
    ensure!(is_in("README") && !is_in(SECRET), "the secret is in it");
    // A report is not replaced.
    let again = cluster.run(&words)?;
    ensure!(
        again.code == 1 && again.errors.contains("pass another name"),
        "{again:?}"
    );
    ensure!(std::fs::read(&path)? == archive);
    Ok(())
}

#[test]
fn what_each_node_pays() -> Result<()> {
    let cluster = cluster()?;
    let ended = cluster.run(&["cost", "--interval", "200ms"])?;
    println!("{}", ended.out);
    let lines: Vec<&str> = ended.out.lines().collect();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    ensure!(
        words(lines[1]) == ["node-1", "1", "9.0", "MiB", "17.0", "MiB", "0.4", "%"],
        "{ended:?}"
    );
    ensure!(
        ended.errors.contains("CrashLoopBackOff") && ended.code == 1,
        "{ended:?}"
    );
    let asked = cluster
        .asked()
        .into_iter()
        .map(|asked| asked.words.join(" "));
    let asked: Vec<String> = asked.collect();
    ensure!(
        asked == ["sidetrack cost -o json --interval 200ms"],
        "{asked:?}"
    );
    Ok(())
}
