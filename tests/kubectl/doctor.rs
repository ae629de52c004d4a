//! `doctor` of all nodes.

use anyhow::{Result, ensure};

use crate::fixture::{Agent, Cluster};

const FINE: &str = r#"{"ok": true, "kernel": "6.18.5", "checks": [{"facility": "BTF", "since": "5.4", "ok": true, "without": "", "problem": null}]}"#;
const OLD: &str = r#"{"ok": false, "kernel": "5.10.0", "checks": [
    {"facility": "BTF", "since": "5.4", "ok": true, "without": "", "problem": null},
    {"facility": "sk_lookup", "since": "5.9", "ok": false, "without": "no inbound", "problem": "EINVAL"},
    {"facility": "cgroup2", "since": "4.5", "ok": null, "without": "", "problem": null}]}"#;

#[test]
fn nodes_and_what_they_lack() -> Result<()> {
    let cluster = Cluster::new(&["node-1", "node-2", "node-3"])?;
    cluster.agent("node-1", Agent::Writes(FINE, 0))?;
    let fine = cluster.run(&["doctor"])?;
    ensure!(fine.code == 0, "{fine:?}");
    cluster.agent("node-2", Agent::Writes(OLD, 1))?;
    cluster.agent("node-3", Agent::Hangs)?;
    let all = cluster.run(&["doctor", "--timeout", "1s", "-o", "wide"])?;
    ensure!(all.code == 1, "{all:?}");
    let lines: Vec<String> = all
        .out
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    ensure!(
        lines
            == [
                "NODE KERNEL CAN RUN SIDETRACK MISSING",
                "node-1 6.18.5 yes",
                "node-2 5.10.0 no sk_lookup: EINVAL; cgroup2 (unknown)",
            ],
        "{lines:#?}"
    );
    let said =
        "kubectl-sidetrack: 1 of 3 agents do not answer:\n  node node-3: no answer within 1s\n";
    ensure!(all.errors == said, "{all:?}");
    let json = cluster
        .run(&["doctor", "--timeout", "1s", "-o", "json"])?
        .json()?;
    ensure!(
        json[1]["report"]["checks"][1]["problem"] == "EINVAL",
        "{json}"
    );
    ensure!(json[2]["problem"] == "no answer within 1s", "{json}");
    Ok(())
}

#[test]
fn versions_of_all_nodes() -> Result<()> {
    const BUILD: &str = r#"{"version": "0.1.0", "commit": "abc", "target": "x86_64-unknown-linux-musl", "layout": 1}"#;
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster.agent("node-1", Agent::Writes(BUILD, 0))?;
    ensure!(cluster.run(&["version"])?.code == 0);
    cluster.agent("node-2", Agent::Hangs)?;
    let all = cluster.run(&["version", "--timeout", "1s"])?;
    ensure!(all.code == 1, "{all:?}");
    let lines: Vec<&str> = all.out.lines().map(str::trim_end).collect();
    ensure!(
        lines[0] == format!("plugin {}", env!("CARGO_PKG_VERSION")),
        "{lines:?}"
    );
    ensure!(
        lines[2..]
            == [
                "NODE    VERSION  COMMIT  TARGET",
                "node-1  0.1.0    abc     x86_64-unknown-linux-musl",
            ],
        "{lines:#?}"
    );
    ensure!(
        all.errors.contains("node node-2: no answer within 1s"),
        "{all:?}"
    );
    let json = cluster
        .run(&["version", "--timeout", "1s", "-o", "json"])?
        .json()?;
    ensure!(json["agents"][0]["build"]["layout"] == 1, "{json}");
    Ok(())
}
