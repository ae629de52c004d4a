//! `kubectl sidetrack trace` without a pod: all nodes at once.

use std::{
    fs,
    path::Path,
    process::{Child, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::wait::eventually;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fixture::{Agent, Cluster};

/// How long what is expected may take.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// A line of a trace.
fn event(pod: &str, verdict: &str) -> Value {
    let (destination, port, rule, errno) = match verdict {
        "untouched" => ("10.1.0.9:5432", 0, "out-port-excluded", None),
        "failed" => ("10.1.0.9:80", 15001, "sidecar-refused", Some(111)),
        _ => ("10.1.0.9:80", 15001, "out-all", None),
    };
    json!({"event": {
        "time": "2026-01-02T03:04:05.678901Z", "pod": pod, "direction": "outbound", "verdict": verdict,
        "source": null, "destination": destination, "port": port, "rule": rule, "errno": errno,
        "process": null, "socket": 1,
    }})
}

/// An agent that traces as `sidetrack trace --attended` does: it says that it runs, until it gets a line or its
/// standard input ends. It leaves files in a directory: `NAME` while it runs, with its process id, and its words.
fn tracing(dir: &Path, name: &str, lines: &[Value]) -> Agent {
    let file = dir.join(name).display().to_string();
    let lines: Vec<String> = lines.iter().map(|line| format!("echo '{line}'")).collect();
    Agent::Script(format!(
        "echo \"$@\" > {file}.words; echo $$ > {file}; echo '{{\"alive\": 0}}'; {}\n\
         (n=1; while sleep 0.5; do echo \"{{\\\"alive\\\": $n}}\"; n=$((n+1)); done) & beat=$!\n\
         read line; kill $beat; {} rm {file}",
        lines.join("\n"),
        // What has come just before the end.
        lines
            .last()
            .map_or_else(String::new, |line| format!("{line};")),
    ))
}

struct Nodes {
    cluster: Cluster,
    dir: TempDir,
}

impl Nodes {
    /// Two nodes that trace.
    fn two() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let cluster = Cluster::new(&["node-1", "node-2", "node-3"])?;
        cluster.pod("shop", "web-0", Some("node-1"))?;
        cluster.pod("shop", "web-1", Some("node-2"))?;
        let first = [
            event("shop/web-0", "redirect"),
            event("shop/other", "untouched"),
        ];
        cluster.agent("node-1", tracing(dir.path(), "node-1", &first))?;
        let second = [json!({"lost": 7}), event("shop/web-1", "failed")];
        cluster.agent("node-2", tracing(dir.path(), "node-2", &second))?;
        Ok(Self { cluster, dir })
    }

    fn start(&self, words: &[&str]) -> Result<Child> {
        let mut command = self.cluster.command(&[&["trace"], words].concat())?;
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Whether the command of a node runs.
    fn runs(&self, node: &str) -> bool {
        self.dir.path().join(node).exists()
    }

    fn wait(&self, what: &str, wanted: impl Fn() -> bool) -> Result<()> {
        eventually(WAIT_TIMEOUT, || {
            ensure!(wanted(), "{what}");
            Ok(())
        })?;
        Ok(())
    }

    /// Waits until commands run on both nodes.
    fn wait_both(&self) -> Result<()> {
        self.wait("both trace", || self.runs("node-1") && self.runs("node-2"))?;
        // Their lines are on their way.
        sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Waits until no command runs.
    fn wait_none(&self) -> Result<()> {
        self.wait("none remains", || {
            !self.runs("node-1") && !self.runs("node-2")
        })
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn interrupt(child: &Child) -> Result<()> {
    Ok(kill(
        Pid::from_raw(child.id().cast_signed()),
        Signal::SIGINT,
    )?)
}

#[test]
fn control_c_ends_all_with_one_summary_and_leaves_nothing() -> Result<()> {
    let nodes = Nodes::two()?;
    let child = nodes.start(&["-A", "--verdict", "failed", "--process", "a b"])?;
    nodes.wait_both()?;
    interrupt(&child)?;
    let output = child.wait_with_output()?;
    let (out, said) = texts(&output);
    println!("{out}{said}");
    ensure!(output.status.code() == Some(0), "{said}");
    let lines: Vec<&str> = out.lines().collect();
    ensure!(lines[0].starts_with("NODE    TIME (UTC)  "), "{out}");
    let of = |node: &str| lines.iter().filter(|line| line.starts_with(node)).count();
    // The last line of each came after the signal to end.
    ensure!(
        of("node-1  ") == 3 && of("node-2  ") == 3 && lines.len() == 7,
        "{out}"
    );
    ensure!(
        out.contains("node-2  ... 7 connections are missing here"),
        "{out}"
    );
    ensure!(
        out.contains("node-2  03:04:05.678901  shop/web-1 "),
        "{out}"
    );
    let summary =
        "kubectl-sidetrack: 2 of 2 nodes: 5 events: 2 failed, 1 redirect, 2 untouched; 7 missing\n";
    ensure!(said == summary, "{said}");
    nodes.wait_none()?;
    let words = fs::read_to_string(nodes.dir.path().join("node-1.words"))?;
    ensure!(
        words == "sidetrack trace --attended --verdict=failed --process=a b\n",
        "{words}"
    );
    Ok(())
}

#[test]
fn a_node_is_believed_about_its_own_pods() -> Result<()> {
    let nodes = Nodes::two()?;
    let lines = [
        event("shop/web-0", "untouched"),
        event("shop/web-1", "redirect"),
        event("shop/new", "redirect"),
    ];
    let agent = tracing(nodes.dir.path(), "node-2", &lines);
    nodes.cluster.agent("node-2", agent)?;
    let child = nodes.start(&["-A"])?;
    nodes.wait_both()?;
    interrupt(&child)?;
    let (out, said) = texts(&child.wait_with_output()?);
    let of = |pod: &str| {
        let lines = out.lines().filter(|line| line.starts_with("node-2"));
        lines.filter(|line| line.contains(pod)).count()
    };
    let shown = ["shop/web-0", "shop/web-1", "shop/new"].map(of);
    // What is not listed may be new. The last line comes twice.
    ensure!(shown == [0, 1, 2], "{out}");
    ensure!(
        said.contains(
            "node node-2: 1 connection of pods that the API server last listed on other nodes"
        ),
        "{said}"
    );
    Ok(())
}

#[test]
fn a_plugin_that_is_killed_leaves_nothing() -> Result<()> {
    let nodes = Nodes::two()?;
    let mut child = nodes.start(&["-A"])?;
    nodes.wait_both()?;
    child.kill()?;
    child.wait()?;
    nodes.wait_none()
}

#[test]
fn the_trace_of_a_pod_ends_with_the_plugin() -> Result<()> {
    let nodes = Nodes::two()?;
    let mut child = nodes.start(&["shop/web-0"])?;
    nodes.wait("it runs", || nodes.runs("node-1"))?;
    // Not SIGINT, which shells have commands in the background ignore.
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM)?;
    child.wait()?;
    nodes.wait_none()
}

#[test]
fn nodes_that_hang_or_fail_stop_no_other() -> Result<()> {
    let nodes = Nodes::two()?;
    nodes.cluster.agent("node-3", Agent::Hangs)?;
    let fails = "echo 'sidetrack: no agent answers' >&2; exit 1";
    nodes
        .cluster
        .agent("node-2", Agent::Script(fails.to_owned()))?;
    let words = ["-A", "--timeout", "1s", "--duration", "7s", "-o", "json"];
    let start = Instant::now();
    let child = nodes.start(&words)?;
    let output = child.wait_with_output()?;
    ensure!(
        start.elapsed() < Duration::from_secs(14),
        "{:?}",
        start.elapsed()
    );
    let (out, said) = texts(&output);
    ensure!(output.status.code() == Some(1), "{said}");
    let lines: Vec<Value> = out
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?;
    ensure!(lines.iter().all(|line| line["node"] == "node-1"), "{out}");
    ensure!(lines[0]["event"]["pod"] == "shop/web-0", "{out}");
    let problem = "kubectl-sidetrack: node node-2: exited with 1: sidetrack: no agent answers\n";
    ensure!(said.matches(problem).count() == 1, "said once: {said}");
    ensure!(said.contains("node node-3: no answer within "), "{said}");
    let summary = said.lines().last().context("a summary")?;
    ensure!(
        summary.starts_with("kubectl-sidetrack: 1 of 3 nodes: 3 events")
            && summary.contains("connections are missing of node-2 (exited with 1"),
        "{said}"
    );
    nodes.wait_none()
}

#[test]
fn pods_are_chosen_by_namespace_and_label() -> Result<()> {
    let nodes = Nodes::two()?;
    let child = nodes.start(&["-n", "shop", "-l", "app=web-0", "--duration", "2s"])?;
    let (out, said) = texts(&child.wait_with_output()?);
    let lines: Vec<&str> = out.lines().skip(1).collect();
    let is_ours = |line: &&str| line.contains(" shop/web-0 ") || line.contains(" missing here");
    ensure!(lines.len() == 2 && lines.iter().all(is_ours), "{out}");
    ensure!(said.contains("1 event: 1 redirect; 7 missing"), "{said}");
    let words = fs::read_to_string(nodes.dir.path().join("node-2.words"))?;
    ensure!(words.contains(" --namespace=shop"), "{words}");
    nodes.wait_none()
}

#[test]
fn it_ends_after_a_number_and_with_its_reader() -> Result<()> {
    let nodes = Nodes::two()?;
    let output = nodes.start(&["-A", "--count", "2"])?.wait_with_output()?;
    let (out, said) = texts(&output);
    let events = out.lines().filter(|line| line.contains("03:04:05")).count();
    ensure!(events == 2 && said.contains(" 2 events: "), "{out}{said}");
    nodes.wait_none()?;
    let mut child = nodes.start(&["-A"])?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    nodes.wait_none()
}

#[test]
fn flags_before_a_pod_are_passed_on() -> Result<()> {
    let nodes = Nodes::two()?;
    nodes
        .cluster
        .agent("node-1", Agent::Script("echo \"$@\"".to_owned()))?;
    let words = [
        "trace",
        "--refused",
        "--duration",
        "3s",
        "shop/web-0",
        "-o",
        "json",
    ];
    let ended = nodes.cluster.run(&words)?;
    let expected =
        "sidetrack trace shop/web-0 --end-with-input --refused --duration=3000ms -o json";
    ensure!(ended.out.trim() == expected, "{ended:?}");
    for wrong in [
        ["trace", "-A", "shop/web-0"],
        ["trace", "--nonsense", "shop/web-0"],
    ] {
        let ended = nodes.cluster.run(&wrong)?;
        ensure!(ended.code == 2, "{ended:?}");
    }
    Ok(())
}
