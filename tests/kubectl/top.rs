//! `kubectl sidetrack top`: one table of all nodes, and the live view on a terminal.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::terminal::Terminal;
use serde_json::json;
use sidetrack_live::{
    Connections,
    screen::Screen,
    top::{Origin, PerSecond, Row, TopReport},
};

use crate::fixture::{Agent, Cluster};

fn row(name: &str, outbound: f64) -> Row {
    Row {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        state: "enrolled".to_owned(),
        reason: None,
        waiting: None,
        sidecar: Some("up".to_owned()),
        per_second: Some(PerSecond {
            outbound_redirected: outbound,
            ..PerSecond::default()
        }),
        connections: Some(Connections {
            outbound_redirected: 100,
            ..Connections::default()
        }),
    }
}

/// An agent with these pods. It answers other commands with their words.
fn agent(pods: Vec<Row>) -> Result<Agent> {
    let report = TopReport {
        // Its own name, which is not the node's in the cluster.
        node: "localhost".to_owned(),
        version: Some("0.1.0".to_owned()),
        origin: Origin::Agent,
        no_answer: None,
        problems: vec!["something is wrong".to_owned()],
        seconds: Some(2.0),
        pods,
    };
    let report = serde_json::to_string(&report)?;
    ensure!(!report.contains('\''));
    Ok(Agent::Script(format!(
        "case $2 in top) echo '{report}';; trace) echo '{{\"alive\": 0}}'; read line;; *) echo $@;; esac"
    )))
}

/// Two nodes that answer, and one that hangs.
fn three() -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2", "node-3"])?;
    for (pod, node) in [("web-0", "node-1"), ("web-1", "node-2"), ("cart", "node-1")] {
        cluster.pod("shop", pod, Some(node))?;
    }
    cluster.agent("node-1", agent(vec![row("web-0", 12.5), row("cart", 0.0)])?)?;
    cluster.agent("node-2", agent(vec![row("web-1", 3.0)])?)?;
    cluster.agent("node-3", Agent::Hangs)?;
    Ok(cluster)
}

#[test]
fn one_table_of_all_nodes() -> Result<()> {
    let cluster = three()?;
    let words = [
        "top",
        "--once",
        "-A",
        "--timeout",
        "2s",
        "--interval",
        "500ms",
    ];
    let ended = cluster.run(&words)?;
    println!("{}{}", ended.out, ended.errors);
    let lines: Vec<Vec<&str>> = ended
        .out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    ensure!(ended.code == 1, "a node is silent: {ended:?}");
    ensure!(ended.took < Duration::from_secs(6), "{ended:?}");
    ensure!(
        lines[0][..5] == ["POD", "NODE", "STATE", "SIDECAR", "OUT/S"],
        "{ended:?}"
    );
    let pods: Vec<_> = lines[1..].iter().map(|line| line[..5].to_vec()).collect();
    let expected = [
        ["shop/cart", "node-1", "enrolled", "up", "0"],
        ["shop/web-0", "node-1", "enrolled", "up", "12"],
        ["shop/web-1", "node-2", "enrolled", "up", "3.0"],
    ];
    ensure!(pods == expected, "{ended:?}");
    let said =
        "kubectl-sidetrack: 1 of 3 agents do not answer:\n  node node-3: no answer within 2.5s\n";
    ensure!(ended.errors == said, "{ended:?}");
    let asked = cluster.asked();
    let command = "sidetrack top --once -o json --interval 500ms";
    ensure!(
        asked.iter().all(|one| one.words.join(" ") == command),
        "{asked:?}"
    );
    Ok(())
}

#[test]
fn pods_are_chosen_by_namespace_label_and_name() -> Result<()> {
    let cluster = three()?;
    cluster.api.apply(lab::injected::namespace("other", None))?;
    for (words, expected) in [
        (["-n", "shop"].as_slice(), vec!["cart", "web-0", "web-1"]),
        (&["-n", "other"], vec![]),
        (&["-A", "-l", "app=web-1"], vec!["web-1"]),
        (&["-A", "web"], vec!["web-0", "web-1"]),
    ] {
        let common = [
            "top",
            "--once",
            "-o",
            "json",
            "--timeout",
            "1s",
            "--interval",
            "100ms",
        ];
        let ended = cluster.run(&[&common[..], words].concat())?;
        let nodes = ended.json()?["nodes"].clone();
        let nodes = nodes.as_array().context("nodes")?;
        ensure!(
            nodes[2]["no_answer"] == "no answer within 1.1s",
            "{nodes:?}"
        );
        ensure!(
            nodes[0]["node"] == "node-1",
            "by its name in the cluster: {nodes:?}"
        );
        let pods = nodes
            .iter()
            .flat_map(|node| node["pods"].as_array().into_iter().flatten());
        let mut names: Vec<_> = pods.map(|pod| pod["name"].clone()).collect();
        names.sort_by_key(ToString::to_string);
        ensure!(json!(names) == json!(expected), "{words:?}: {names:?}");
    }
    Ok(())
}

#[test]
fn without_a_terminal_there_is_no_live_view() -> Result<()> {
    let ended = three()?.run(&["top"])?;
    ensure!(
        ended.code == 1 && ended.errors.contains("pass --once"),
        "{ended:?}"
    );
    ensure!(ended.out.is_empty(), "{ended:?}");
    Ok(())
}

#[test]
fn the_live_view_shows_who_is_silent_and_all_others() -> Result<()> {
    let cluster = three()?;
    let words = ["top", "-A", "--timeout", "2s", "--interval", "100ms"];
    let mut terminal = Terminal::start(&cluster.command(&words)?)?;
    // On a busy machine a node that answers may be late once, too.
    terminal.wait(|text| {
        text.starts_with("sidetrack top  3 nodes, 1 silent")
            && text.contains("3 problems")
            && text.contains("node-3: no agent since ")
            && ["NODE", "shop/web-0", "shop/web-1"]
                .iter()
                .all(|word| text.contains(word))
    })?;
    // The rules of a pod, asked on its node. The order of the pods depends on who answers first.
    terminal.keys("/web-0\r")?;
    terminal.wait(|text| text.contains("1 of 3 pods"))?;
    terminal.keys("r")?;
    terminal.wait(|text| text.contains("sidetrack rules shop/web-0"))?;
    terminal.keys("qt")?;
    terminal
        .wait(|text| text.contains("trace of shop/web-0 on node-1") && text.contains("0 events"))?;
    // Escape and what follows at once would be another key.
    terminal.keys("\x1b")?;
    terminal.wait(|text| text.contains("SIDECAR"))?;
    terminal.keys("\x1b")?;
    terminal.wait(|text| !text.contains("1 of 3 pods"))?;
    terminal.keys("/web-1\r")?;
    terminal.wait(|text| text.contains("1 of 3 pods") && text.contains("shop/web-1"))?;
    terminal.keys("q")?;
    ensure!(terminal.wait_end()? == Some(0), "{}", terminal.text());
    terminal.wait_given_back()?;
    Ok(())
}

/// Set for the run of this program that [`panics`] is for.
const PANIC: &str = "SIDETRACK_TEST_PANIC";

#[test]
fn a_panic_gives_the_terminal_back() -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "top::panics", "--nocapture"]);
    // A backtrace would be longer than the terminal.
    command.env(PANIC, "1").env("RUST_BACKTRACE", "0");
    let mut terminal = Terminal::start(&command)?;
    ensure!(terminal.wait_end()? == Some(101), "{}", terminal.text());
    terminal.wait(|text| text.contains("on purpose"))?;
    terminal.wait_given_back()?;
    Ok(())
}

/// Panics on a terminal, and drops nothing, as a build with panic=abort does.
#[test]
fn panics() {
    if std::env::var_os(PANIC).is_some() {
        std::mem::forget(Screen::open().expect("a terminal"));
        panic!("on purpose");
    }
}
