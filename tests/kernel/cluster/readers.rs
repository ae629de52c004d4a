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
    apiserver::{Request, exec::Answer, readers::token},
    injected::injected,
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
    fn new() -> Result<Self> {
        let (mut cluster, outside, pod) = labeled()?;
        let sidecar = sidecar::start(&pod, &[80])?;
        // A port that is free now.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(listener);
        cluster.agent.end(Signal::SIGKILL)?;
        let metrics = format!("--metrics-addr={address}");
        let extra = Extra {
            arguments: &[&metrics, "--daemonset=sidetrack-system/sidetrack"],
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
        let refuse = |_: &_| Answer::Refused(StatusCode::FORBIDDEN, "no".to_owned());
        cluster.api.on_exec(refuse);
        Ok(Self {
            cluster,
            address: address.to_string(),
            _running: vec![Box::new(sidecar), Box::new(pod), Box::new(outside)],
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

    /// The same, and again while the agent asks the API server about another token.
    fn ask_patiently(&self, token: &str, words: &str) -> Result<(u16, String)> {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let answer = self.ask(token, words)?;
            if answer.0 != 503 || Instant::now() > until {
                return Ok(answer);
            }
        }
    }
}

kernel_test!(a_reader_needs_no_exec);
fn a_reader_needs_no_exec() -> Result<()> {
    let node = Node::new()?;
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
    let node = Node::new()?;
    node.cluster.api.set_readers(&["shop"]);
    let pods = node.json(&["pods", "-n", "shop", "-o", "json"])?;
    ensure!(pods["pods"][0]["state"] == "enrolled", "{pods}");
    node.json(&["rules", "shop/web", "-o", "json"])?;
    node.json(&["events", "-n", "shop", "-o", "json"])?;
    for words in [&["status"][..], &["pods", "-A"], &["events", "-A"]] {
        let output = node.run(words)?;
        ensure!(output.status.code() == Some(1), "{words:?}: {output:?}");
        let said = String::from_utf8(output.stderr)?;
        ensure!(said.contains("pods/exec"), "{words:?}: {said}");
    }
    // A client that asks the agent itself gets no more.
    let audience = reader::audience(NODE);
    let of_shop = token("shop", reader::SERVICE_ACCOUNT, &audience);
    let (code, _) = node.ask_patiently(&of_shop, r#"["pods","-n","shop","-o","json"]"#)?;
    ensure!(code == 200, "{code}");
    for words in [
        r#"["pods","-o","json"]"#,
        r#"["pods","-n","other"]"#,
        r#"["pods","-n","shop","--namespace","other"]"#,
        r#"["status"]"#,
        r#"["cleanup"]"#,
        "[]",
    ] {
        let (code, said) = node.ask_patiently(&of_shop, words)?;
        ensure!(code == 403, "{words}: {code} {said}");
    }
    Ok(())
}

kernel_test!(what_is_no_readers_token_gets_nothing);
fn what_is_no_readers_token_gets_nothing() -> Result<()> {
    let node = Node::new()?;
    let words = r#"["status","-o","json"]"#;
    let audience = reader::audience(NODE);
    let good = token("sidetrack-system", reader::SERVICE_ACCOUNT, &audience);
    for (bad, why) in [
        (String::new(), "none"),
        ("x".repeat(1000), "not one of the API server's"),
        (
            token("sidetrack-system", "sidetrack", &audience),
            "of another account",
        ),
        (
            token(
                "sidetrack-system",
                reader::SERVICE_ACCOUNT,
                &reader::audience("node-2"),
            ),
            "for another node",
        ),
    ] {
        let (code, said) = node.ask_patiently(&bad, words)?;
        ensure!(code == 401, "{why}: {code} {said}");
    }
    let (code, said) = node.ask_patiently(&good, words)?;
    ensure!(code == 200, "{code} {said}");
    // A pod that floods the port costs the API server little, and one that is known nothing.
    let (before, start) = (node.cluster.api.reviews(), Instant::now());
    for _ in 0..100 {
        let (code, _) = node.ask("guess", words)?;
        ensure!([401, 503].contains(&code), "{code}");
        ensure!(node.ask(&good, r#"["version"]"#)?.0 == 200);
    }
    let reviews = node.cluster.api.reviews() - before;
    let most = 2 + start.elapsed().as_millis() / 200;
    ensure!(
        (1..=most).contains(&(reviews as u128)),
        "{reviews} reviews, at most {most}"
    );
    Ok(())
}
