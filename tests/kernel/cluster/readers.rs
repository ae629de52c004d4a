//! Readers: users who may not run commands in the agent's container, and get its answers by the API server's proxy.

use std::{
    net::TcpListener,
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use axum::http::StatusCode;
use lab::{
    agent::{Agent, Extra, NODE},
    apiserver::{
        Request,
        exec::Answer,
        readers::{ANY, token},
    },
    injected::{injected, namespace},
    plugin, sidecar,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sidetrack_policy::reader;

use super::labeled;
use crate::fixture::ClusterFixture;

/// A node with a pod `shop/web`, and an agent that the API server's proxy reaches; no user may run commands in it.
/// Fields drop in order: processes before what they run in.
struct Node {
    _running: Vec<Box<dyn std::any::Any>>,
    address: String,
    cluster: ClusterFixture,
}

impl Node {
    fn new(readers: &str) -> Result<Self> {
        let (mut cluster, outside, pod) = labeled()?;
        let sidecar = sidecar::start(&pod, &[80])?;
        // A port that is free now.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(listener);
        cluster.agent.end(Signal::SIGKILL)?;
        let metrics = format!("--metrics-addr={address}");
        let readers = format!("--readers={readers}");
        let daemonset = "--daemonset=sidetrack-system/sidetrack";
        let extra = Extra {
            arguments: &[&metrics, &readers, daemonset],
            ..Extra::api(&cluster.api)
        };
        cluster.api.apply(plugin::daemonset(1))?;
        cluster.agent = Agent::start_with(cluster.lab.places(), &extra)?;
        cluster.api.apply(json!({
            "kind": "Node", "metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}},
        }))?;
        let mut agent = plugin::agents_pod(NODE, &json!({"running": {}}));
        agent["spec"]["containers"][0]["ports"] =
            json!([{"name": "metrics", "containerPort": address.port()}]);
        cluster.api.apply(agent)?;
        cluster.api.apply(injected("web", &cluster.lab.uid(1)))?;
        cluster.wait_enrollment("shop/web", true)?;
        cluster.api.apply(namespace("bank", Some("enabled")))?;
        let bank = cluster.lab.pod("bank", 3)?;
        let bank = bank.under_kubelet(&cluster.lab, &cluster.lab.uid(2))?;
        let other_sidecar = sidecar::start(&bank, &[80])?;
        let mut other = injected("ledger", &cluster.lab.uid(2));
        other["metadata"]["namespace"] = "bank".into();
        cluster.api.apply(other)?;
        cluster.wait_enrollment("bank/ledger", true)?;
        let refuse = |_: &_| Answer::Refused(StatusCode::FORBIDDEN, "no".to_owned());
        cluster.api.on_exec(refuse);
        Ok(Self {
            cluster,
            address: address.to_string(),
            _running: vec![
                Box::new(sidecar),
                Box::new(other_sidecar),
                Box::new(pod),
                Box::new(bank),
                Box::new(outside),
            ],
        })
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        Ok(plugin::command(&self.cluster.api, words)?.output()?)
    }

    fn json(&self, words: &[&str]) -> Result<Value> {
        let output = self.run(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Asks the agent itself: the code of HTTP and the answer.
    fn ask(&self, token: &str, words: &str) -> Result<(u16, String)> {
        let output = Command::new("curl")
            .args(["-s", "-m", "10", "-G", "-w", "\n%{http_code}", "-H"])
            .arg(format!("{}: {token}", reader::TOKEN))
            .arg("--data-urlencode")
            .arg(format!("words={words}"))
            .arg(format!("http://{}{}", self.address, reader::PATH))
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let (body, code) = text.rsplit_once('\n').context("a code")?;
        Ok((code.parse()?, body.to_owned()))
    }
}

kernel_test!(a_reader_needs_no_exec);
fn a_reader_needs_no_exec() -> Result<()> {
    let node = Node::new("cluster")?;
    node.cluster.api.set_readers(&["sidetrack-system"]);
    let pods = node.json(&["pods", "-n", "shop", "-o", "json"])?;
    ensure!(pods["pods"][0]["state"] == "enrolled", "{pods}");
    let status = node.json(&["status", "-o", "json"])?;
    ensure!(status["nodes"][0]["state"] == "ready", "{status}");
    let direct = node.cluster.places();
    let rules = node.json(&["rules", "shop/web", "-o", "json"])?;
    ensure!(rules == direct.json(&["rules", "shop/web", "-o", "json"])?);
    let words = ["explain", "shop/web", "outbound", "--dst", "10.0.0.9:80"];
    let explained = node.json(&[&words[..], &["-o", "json"]].concat())?;
    ensure!(explained["verdict"] == "redirect", "{explained}");
    for words in [&["cost", "-o", "json"][..], &["events", "-A", "-o", "json"]] {
        node.json(words)?;
    }
    let used = node.cluster.api.requests();
    ensure!(used.iter().all(|it| it.resource != "pods/exec"), "{used:?}");
    for (verb, resource) in [("create", "serviceaccounts/token"), ("get", "pods/proxy")] {
        let is_used = |it: &Request| it.verb == verb && it.resource == resource;
        ensure!(used.iter().any(is_used), "{verb} {resource}: {used:?}");
    }
    // What readers do not get is not shown as something else.
    let doctor = node.run(&["doctor"])?;
    let said = String::from_utf8(doctor.stderr)?;
    ensure!(
        doctor.status.code() == Some(1) && said.contains("pods/exec"),
        "{said}"
    );
    Ok(())
}

kernel_test!(a_reader_of_a_namespace_sees_no_other);
fn a_reader_of_a_namespace_sees_no_other() -> Result<()> {
    let node = Node::new("namespaces")?;
    node.cluster.api.set_readers(&["shop"]);
    let pods = node.json(&["pods", "-n", "shop", "-o", "json"])?;
    ensure!(pods["pods"][0]["state"] == "enrolled", "{pods}");
    node.json(&["rules", "shop/web", "-o", "json"])?;
    node.json(&["events", "-n", "shop", "-o", "json"])?;
    for words in [&["status"][..], &["pods", "-A"], &["events", "-A"]] {
        let output = node.run(words)?;
        ensure!(output.status.code() == Some(1), "{words:?}: {output:?}");
        let said = String::from_utf8(output.stderr)?;
        ensure!(
            said.contains("as a reader: ") && said.contains("pods/exec"),
            "{words:?}: {said}"
        );
    }
    // A client that asks the agent itself gets no more.
    let audience = reader::audience(NODE);
    let of_shop = token("shop", reader::SERVICE_ACCOUNT, &audience);
    let (code, said) = node.ask(&of_shop, r#"["pods","-o","json"]"#)?;
    ensure!(code == 200, "{code} {said}");
    let answer: reader::Answer = serde_json::from_str(&said)?;
    let rows: Vec<Value> = serde_json::from_str(&answer.stdout)?;
    ensure!(!rows.is_empty(), "{answer:?}");
    ensure!(
        rows.iter().all(|row| row["namespace"] == "shop"),
        "{answer:?}"
    );
    for words in [
        r#"["pods","-n","bank"]"#,
        r#"["pods","-n","shop","--namespace","bank"]"#,
        r#"["pods","bank/ledger"]"#,
        r#"["events"]"#,
        r#"["connections","-o","json"]"#,
        r#"["connections","bank/ledger"]"#,
        r#"["why","bank/ledger"]"#,
        r#"["why","shop/leger"]"#,
        r#"["why","shop/ledger"]"#,
        r#"["rules","nothing"]"#,
        r#"["rules","bank/ledger"]"#,
        r#"["explain","-n","shop","ledger","outbound","-n=bank","--dst","1.2.3.4:80"]"#,
    ] {
        let (code, said) = node.ask(&of_shop, words)?;
        ensure!(code == 200, "{words}: {code} {said}");
        let answer: reader::Answer = serde_json::from_str(&said)?;
        ensure!(!answer.stdout.contains("ledger"), "{words}: {answer:?}");
        // An error may repeat what it was asked.
        let asked = words.matches("ledger").count();
        ensure!(
            answer.stderr.matches("ledger").count() <= asked,
            "{words}: {answer:?}"
        );
    }
    for words in [
        r#"["status"]"#,
        r#"["cleanup"]"#,
        "[]",
        r#"["pods","--only-namespace","bank"]"#,
    ] {
        let (code, said) = node.ask(&of_shop, words)?;
        ensure!(code == 403, "{words}: {code} {said}");
    }
    Ok(())
}

kernel_test!(what_is_no_readers_token_gets_nothing);
fn what_is_no_readers_token_gets_nothing() -> Result<()> {
    let node = Node::new("cluster")?;
    let words = r#"["status","-o","json"]"#;
    let account = reader::SERVICE_ACCOUNT;
    let audience = reader::audience(NODE);
    let good = token("sidetrack-system", account, &audience);
    for (bad, why) in [
        (String::new(), "none"),
        ("x".repeat(1000), "not one of the API server's"),
        ("a.b.c".to_owned(), "nor this one"),
        (
            token("sidetrack-system", "sidetrack", &audience),
            "of another account",
        ),
        (token("shop", account, &audience), "of a namespace"),
        (
            token("sidetrack-system", account, &reader::audience("node-2")),
            "for another node",
        ),
        (
            token("sidetrack-system", account, ANY),
            "by a server that does not look at audiences",
        ),
    ] {
        let (code, said) = node.ask(&bad, words)?;
        ensure!(code == 401, "{why}: {code} {said}");
    }
    let (code, said) = node.ask(&good, words)?;
    ensure!(code == 200, "{code} {said}");
    // A client that floods the port costs the API server little, and a reader who is known nothing.
    let (before, start) = (node.cluster.api.reviews(), Instant::now());
    for guess in ["guess", "a.b.c"].repeat(5) {
        let (code, _) = node.ask(guess, words)?;
        ensure!(code == 401, "{code}");
        ensure!(node.ask(&good, r#"["version"]"#)?.0 == 200);
    }
    let reviews = node.cluster.api.reviews() - before;
    ensure!(
        reviews == 5 && start.elapsed() >= 4 * Duration::from_millis(200),
        "{reviews} reviews in {:?}",
        start.elapsed()
    );
    // Nor does one that goes away before its answer.
    node.cluster.api.set_review_time(Duration::from_millis(300));
    let (before, start) = (node.cluster.api.reviews(), Instant::now());
    for _ in 0..15 {
        Command::new("curl")
            .args(["-s", "-m", "0.05", "-H"])
            .arg(format!("{}: a.b.c", reader::TOKEN))
            .arg(format!("http://{}{}?words=[]", node.address, reader::PATH))
            .output()?;
    }
    let reviews = (node.cluster.api.reviews() - before) as u128;
    let most = 2 + start.elapsed().as_millis() / 200;
    ensure!((1..=most).contains(&reviews), "{reviews}, at most {most}");
    Ok(())
}
