//! One request through both sidecars, and what their access logs show.

use std::{fs, process::Output, thread, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use lab::envoy::LOG_FIELDS;
use serde_json::Value;

use super::{APP_UID, URL, heading, pods::log_path};
use crate::{
    checks::Checks,
    environment::{DemoPod, Environment, HTTPBIN, SERVICE, UBUNTU},
};

/// The article's access logs: sender, receiver.
const ARTICLE: [[(&str, &str); 5]; 2] = [
    [
        ("downstream_local_address", "10.109.118.31:80"),
        ("downstream_remote_address", "172.17.0.9:52178"),
        (
            "upstream_cluster",
            "outbound|80||httpbin-service.default.svc.cluster.local",
        ),
        ("upstream_host", "172.17.0.8:80"),
        ("upstream_local_address", "172.17.0.9:43422"),
    ],
    [
        ("downstream_local_address", "172.17.0.8:80"),
        ("downstream_remote_address", "172.17.0.9:43422"),
        (
            "upstream_cluster",
            "inbound|80|http|httpbin-service.default.svc.cluster.local",
        ),
        ("upstream_host", "127.0.0.1:80"),
        ("upstream_local_address", "127.0.0.1:55232"),
    ],
];

/// What curl said: trace on stderr, body on stdout, then the address it believes to talk to.
pub fn curl_with_names(environment: &Environment) -> Result<Output> {
    heading(&format!("As uid {APP_UID} in pod ubuntu: curl -sv {URL}"));
    let words = [
        "curl",
        "-sv",
        "--max-time",
        "10",
        "-w",
        "\npeer=%{remote_ip}:%{remote_port}",
        URL,
    ];
    let output = environment.in_pod(UBUNTU, APP_UID, &words).output()?;
    print!("{}", String::from_utf8_lossy(&output.stderr));
    println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    Ok(output)
}

pub fn access_logs(checks: &mut Checks, curl: &Output) -> Result<()> {
    let logs = [last_log(UBUNTU)?, last_log(HTTPBIN)?];
    for ((pod, log), article) in [UBUNTU, HTTPBIN].iter().zip(&logs).zip(ARTICLE) {
        heading(&format!(
            "Access log of {}'s sidecar, beside that of Istio with istio-init",
            pod.name
        ));
        for (field, _) in LOG_FIELDS {
            let theirs = article
                .iter()
                .find(|(name, _)| *name == field)
                .map(|(_, value)| *value);
            println!(
                "  {field:<27} {:<52} {}",
                text(log, field),
                theirs.unwrap_or_default()
            );
        }
    }
    heading("Checks of the request");
    check_response(checks, curl);
    check_logs(checks, &logs);
    Ok(())
}

/// What curl received.
fn check_response(checks: &mut Checks, curl: &Output) {
    let headers = String::from_utf8_lossy(&curl.stderr).to_lowercase();
    let body = String::from_utf8_lossy(&curl.stdout);
    let says = |part: &str| headers.contains(part).then_some(()).ok_or("it is missing");
    checks.record("the response is 200 OK", says("< http/1.1 200 ok"));
    checks.record("it has the header server: envoy", says("< server: envoy"));
    checks.record(
        "it has the header x-envoy-upstream-service-time",
        says("< x-envoy-upstream-service-time:"),
    );
    let peer = body
        .lines()
        .find_map(|line| line.strip_prefix("peer="))
        .unwrap_or_default();
    checks.equal("curl's peer", peer, &service());
}

fn service() -> String {
    format!("{}:{}", SERVICE.0, SERVICE.1)
}

/// What the sender's and the receiver's sidecar logged.
fn check_logs(checks: &mut Checks, [sent, received]: &[Value; 2]) {
    let ip = |log: &Value, field: &str| {
        text(log, field)
            .rsplit_once(':')
            .map_or("", |(ip, _)| ip)
            .to_owned()
    };
    let app = format!("{}:80", HTTPBIN.ip);
    checks.equal(
        "sender: downstream local",
        text(sent, "downstream_local_address"),
        &service(),
    );
    checks.equal(
        "sender: downstream remote is the pod",
        &ip(sent, "downstream_remote_address"),
        UBUNTU.ip,
    );
    checks.equal("sender: upstream host", text(sent, "upstream_host"), &app);
    checks.equal(
        "sender: upstream local is the pod",
        &ip(sent, "upstream_local_address"),
        UBUNTU.ip,
    );
    checks.equal(
        "receiver: downstream local",
        text(received, "downstream_local_address"),
        &app,
    );
    checks.equal(
        "receiver: downstream remote, the sender's upstream local",
        text(received, "downstream_remote_address"),
        text(sent, "upstream_local_address"),
    );
    checks.equal(
        "receiver: upstream host",
        text(received, "upstream_host"),
        &app,
    );
    checks.equal(
        "receiver: upstream local",
        &ip(received, "upstream_local_address"),
        "127.0.0.6",
    );
    checks.equal(
        "both logged one request",
        text(received, "request_id"),
        text(sent, "request_id"),
    );
}

pub fn text<'a>(log: &'a Value, field: &str) -> &'a str {
    log[field].as_str().unwrap_or("-")
}

/// The last line of a sidecar's access log; Envoy writes it a moment after the response.
fn last_log(pod: DemoPod) -> Result<Value> {
    for _ in 0..100 {
        let log = fs::read_to_string(log_path(pod))?;
        if let Some(line) = log.lines().last() {
            let mut log: Value = serde_json::from_str(line).context("parse the access log")?;
            if let Some(code) = log["response_code"].as_u64() {
                log["response_code"] = code.to_string().into();
            }
            return Ok(log);
        }
        thread::sleep(Duration::from_millis(100));
    }
    Err(anyhow!("the sidecar of {} logged nothing", pod.name))
}
