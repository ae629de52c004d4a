//! What happened lately, of all nodes in one list.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::fixture::{Agent, Cluster};

const FIRST: &str = r#"[
    {"time": "2026-11-23T12:00:00.000Z", "kind": "agent-started", "pod": null, "text": "version 1"},
    {"time": "2026-11-23T12:00:02.000Z", "kind": "refused", "pod": "shop/web-0", "text": "no-route"}
]"#;
/// An agent of a newer version has more kinds and fields.
const SECOND: &str = r#"[
    {"time": "2026-11-23T12:00:01.000Z", "kind": "slept", "pod": "bank/ledger", "text": "well", "for": 3}
]"#;

fn two(second: Agent) -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2"])?;
    cluster.agent("node-1", Agent::Writes(FIRST, 0))?;
    cluster.agent("node-2", second)?;
    Ok(cluster)
}

#[test]
fn events_of_all_nodes_are_in_one_list() -> Result<()> {
    let cluster = two(Agent::Writes(SECOND, 0))?;
    let all = cluster.run(&["events", "-A", "--kind", "refused", "--since", "1h"])?;
    ensure!(all.code == 0, "{all:?}");
    let lines: Vec<Vec<&str>> = all
        .out
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    ensure!(
        lines[0] == ["TIME", "NODE", "KIND", "POD", "WHAT"],
        "{all:?}"
    );
    let nodes: Vec<&str> = lines[1..].iter().map(|line| line[1]).collect();
    ensure!(nodes == ["node-1", "node-2", "node-1"], "by time: {all:?}");
    ensure!(lines[2][2..] == ["other", "bank/ledger", "well"], "{all:?}");
    let asked = cluster.asked();
    ensure!(
        asked.iter().all(|asked| asked.words
            == [
                "sidetrack",
                "events",
                "-o",
                "json",
                "--kind=refused",
                "--since=3600000ms"
            ]),
        "{asked:?}"
    );
    let pod = cluster.run(&["events", "shop/web-0", "-o", "json"])?;
    let events = pod.json()?;
    ensure!(events.as_array().map(Vec::len) == Some(1), "{pod:?}");
    ensure!(
        events[0]["node"] == "node-1" && events[0]["text"] == "no-route",
        "{pod:?}"
    );
    let none = cluster.run(&["events", "-n", "empty", "-o", "json"])?;
    ensure!(none.json()? == json!([]), "{none:?}");
    Ok(())
}

#[test]
fn an_agent_that_does_not_know_the_command_is_named() -> Result<()> {
    let cluster = two(Agent::Writes("", 2))?;
    let all = cluster.run(&["events", "-A"])?;
    ensure!(
        all.code == 1 && all.errors.contains("node node-2: "),
        "{all:?}"
    );
    ensure!(all.out.contains("no-route"), "{all:?}");
    Ok(())
}
