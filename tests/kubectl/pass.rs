//! Commands about one pod, which run in the agent of its node.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::apiserver::exec::{Answer, End, Piece, Request};
use serde_json::{Value, json};

use crate::fixture::{Agent, Cluster};

/// Nodes with an agent each, and pods `shop/web-0` and `shop/web-1` on them.
fn two() -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1", "node-2", "node-3"])?;
    for (pod, node) in [("web-0", "node-1"), ("web-1", "node-2")] {
        cluster.pod("shop", pod, Some(node))?;
        cluster.agent(node, Agent::Hangs)?;
    }
    cluster.pod("shop", "alone", Some("node-3"))?;
    cluster.pod("shop", "new", None)?;
    Ok(cluster)
}

/// The agents answer with their own name, the words and an exit code.
fn echo(request: &Request) -> Answer {
    Answer::Output(
        vec![
            Piece::Out(format!("{} {}\n", request.pod, request.words.join(" ")).into_bytes()),
            Piece::Error(b"a remark\n".to_vec()),
        ],
        End::Code(3),
    )
}

#[test]
fn arguments_output_and_exit_code_pass_through() -> Result<()> {
    let cluster = two()?;
    cluster.api.on_exec(echo);
    for (words, expected) in [
        (
            ["rules", "shop/web-1", "-6"].as_slice(),
            "sidetrack-node-2 sidetrack rules shop/web-1 -6",
        ),
        (
            &[
                "-n",
                "shop",
                "explain",
                "web-0",
                "inbound",
                "--dst",
                "10.0.0.1:80",
                "-o",
                "json",
            ],
            "sidetrack-node-1 sidetrack explain shop/web-0 inbound --dst 10.0.0.1:80 -o json",
        ),
        (
            &["connections", "web-1", "-n", "shop", "--limit", "5"],
            "sidetrack-node-2 sidetrack connections shop/web-1 --limit 5",
        ),
    ] {
        let ended = cluster.run(words)?;
        ensure!(ended.out.trim() == expected, "{ended:?}");
        ensure!(ended.errors == "a remark\n" && ended.code == 3, "{ended:?}");
    }
    Ok(())
}

#[test]
fn lines_are_shown_as_they_come() -> Result<()> {
    let cluster = two()?;
    cluster.api.on_exec(|_| {
        let pieces = vec![
            Piece::Out(b"first\n".to_vec()),
            Piece::Pause(Duration::from_secs(3)),
            Piece::Out(b"second\n".to_vec()),
        ];
        Answer::Output(pieces, End::Code(0))
    });
    let start = Instant::now();
    // A live command may be silent for longer than an agent may take to begin.
    let mut command = cluster.command(&["--timeout", "1s", "trace", "shop/web-0"])?;
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut out = BufReader::new(child.stdout.take().context("stdout")?);
    let mut line = String::new();
    out.read_line(&mut line)?;
    ensure!(line == "first\n", "{line:?}");
    ensure!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    let mut rest = String::new();
    out.read_to_string(&mut rest)?;
    ensure!(rest == "second\n", "{rest:?}");
    ensure!(child.wait()?.success());
    Ok(())
}

#[test]
fn a_reader_may_go_away() -> Result<()> {
    let cluster = two()?;
    cluster.api.on_exec(|_| {
        let line = vec![b'x'; 1 << 20];
        Answer::Output(vec![Piece::Out(line); 4], End::Code(0))
    });
    let mut command = cluster.command(&["trace", "shop/web-0"])?;
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(child.stdout.take());
    let ended = child.wait_with_output()?;
    ensure!(
        ended.status.success() && ended.stderr.is_empty(),
        "{ended:?}"
    );
    Ok(())
}

#[test]
fn an_agent_that_hangs_is_given_up() -> Result<()> {
    let cluster = two()?;
    for command in ["rules", "connections"] {
        let ended = cluster.run(&["--timeout", "1s", command, "shop/web-1"])?;
        ensure!(
            ended.code == 1 && ended.took < Duration::from_secs(4),
            "{ended:?}"
        );
        ensure!(
            ended.errors.contains("node node-2: no answer within 1s"),
            "{ended:?}"
        );
    }
    Ok(())
}

#[test]
fn mistakes_name_their_cure() -> Result<()> {
    let cluster = two()?;
    for (words, code, expected) in [
        (
            ["rules", "shop/none"].as_slice(),
            1,
            "there is no pod shop/none",
        ),
        (
            &["rules", "web-0"],
            1,
            "there is no pod default/web-0: name it as NAMESPACE/POD",
        ),
        (
            &["rules", "shop/alone"],
            1,
            "is on node node-3, which has no agent",
        ),
        (&["rules", "shop/new"], 1, "has no node yet"),
        (&["rules", "a/b/c"], 1, "write NAMESPACE/NAME"),
        (&["rules", "-6", "shop/web-0"], 2, "the pod comes before -6"),
        (&["rules"], 2, "<[NAMESPACE/]POD>"),
        (&["statsu"], 2, "unrecognized subcommand 'statsu'"),
        (
            &["later", "shop/web-0"],
            2,
            "unrecognized subcommand 'later'",
        ),
        (
            &["cleanup", "shop/web-0"],
            2,
            "unrecognized subcommand 'cleanup'",
        ),
    ] {
        let ended = cluster.run(words)?;
        ensure!(
            ended.code == code && ended.errors.contains(expected),
            "{words:?}: {ended:?}"
        );
    }
    ensure!(cluster.asked().is_empty(), "no agent is to be asked");
    Ok(())
}

#[test]
fn a_pod_is_named_by_what_it_belongs_to() -> Result<()> {
    let cluster = two()?;
    cluster.api.on_exec(echo);
    for (kind, name, selector) in [
        ("Deployment", "web", json!({"matchLabels": {"app": "web"}})),
        ("Service", "front", json!({"app": "web"})),
        (
            "Deployment",
            "none",
            json!({"matchLabels": {"app": "none"}}),
        ),
        ("Service", "external", Value::Null),
    ] {
        cluster.api.apply(json!({
            "kind": kind, "metadata": {"name": name, "namespace": "shop"},
            "spec": {"selector": selector},
        }))?;
    }
    // One that starts, one that has no node, one of another namespace, one that has ended.
    for (namespace, name, node, phase) in [
        ("shop", "web-a", Some("node-1"), "Pending"),
        ("shop", "web-b", Some("node-2"), "Running"),
        ("shop", "web-c", Some("node-1"), "Running"),
        ("shop", "web-d", None, "Pending"),
        ("shop", "web-9", Some("node-1"), "Succeeded"),
        ("other", "web-1", Some("node-1"), "Running"),
    ] {
        cluster.pod(namespace, name, node)?;
        let mut pod = cluster.api.get("Pod", namespace, name)?;
        pod["metadata"]["labels"]["app"] = "web".into();
        pod["status"]["phase"] = phase.into();
        cluster.api.apply(pod)?;
    }
    for named in [
        &["deploy/web"][..],
        &["deployment/web"],
        &["svc/front"],
        &["-l", "app=web"],
        &["pod/web-b"],
    ] {
        let words = [&["-n", "shop", "why"], named, &["-o", "json"]].concat();
        let ended = cluster.run(&words)?;
        let expected = "sidetrack-node-2 sidetrack why shop/web-b -o json";
        ensure!(ended.out.trim() == expected, "{named:?}: {ended:?}");
        let says = ended.errors.contains("of 5 pods of");
        ensure!(says != (named == ["pod/web-b"]), "{ended:?}");
    }
    for (named, problem) in [
        (
            "deploy/none",
            "no pod of deploy/none in namespace shop is on a node",
        ),
        ("deploy/absent", "get deploy/absent in namespace shop"),
        (
            "svc/external",
            "svc/external in namespace shop selects no pods",
        ),
    ] {
        let ended = cluster.run(&["-n", "shop", "why", named])?;
        ensure!(
            ended.code == 1 && ended.errors.contains(problem),
            "{ended:?}"
        );
    }
    Ok(())
}
