//! `kubectl sidetrack test`: what it does about a cluster that is not as it should be, and that it always cleans up.
//! What it tries can only be tried on a real cluster.

use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use axum::http::StatusCode;
use lab::{
    apiserver::{
        create::Refusal,
        exec::{Answer, End, Piece, Request},
    },
    wait::eventually,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sidetrack::api::PodState;

use crate::{
    fixture::{Agent, Cluster, known},
    rights,
};

/// The command, with limits that a test can wait for.
const TEST: [&str; 7] = [
    "test",
    "--mesh-image",
    "mesh:1",
    "--start-timeout",
    "3s",
    "--test-namespace",
    "mine",
];

/// Addresses of Service and pods.
const SERVICE: &str = "10.96.0.9";
const PODS: [(&str, &str); 4] = [
    ("server", "10.244.0.2"),
    ("client", "10.244.0.3"),
    ("plain", "10.244.0.4"),
    ("down", "10.244.0.5"),
];

/// What controllers and kubelet do about an object.
fn complete(object: &mut Value) -> Result<(), Refusal> {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if object["kind"] == "Service" {
        object["spec"]["clusterIP"] = SERVICE.into();
    }
    let Some((_, ip)) = PODS
        .iter()
        .find(|(pod, _)| *pod == name && object["kind"] == "Pod")
    else {
        return Ok(());
    };
    object["spec"]["nodeName"] = "node-1".into();
    let containers = object["spec"]["containers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let statuses: Vec<Value> = containers
        .iter()
        .map(|container| json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}},
        }))
        .collect();
    object["status"] = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "containerStatuses": statuses});
    Ok(())
}

/// What a call in a pod prints where everything is as promised.
fn call(pod: &str, container: &str, address: &str, port: &str) -> Value {
    let own = |pod| {
        PODS.iter()
            .find(|(name, _)| *name == pod)
            .map_or("", |(_, ip)| *ip)
    };
    let from = if address == "127.0.0.1" {
        address
    } else {
        own(pod)
    };
    let (socket, dialed) = (format!("{from}:40000"), format!("{address}:{port}"));
    let mut headers = json!({});
    let mut body = json!({"peer": socket, "own": dialed}).to_string();
    let by_service = address == SERVICE;
    if pod == "down" || address == own("down") {
        return json!({"error": "ECONNREFUSED"});
    }
    if pod == "client" && container == "app" && address != "127.0.0.1" && port != "8082" {
        headers["x-sidetrack-outbound"] = dialed.clone().into();
        headers["x-sidetrack-outbound-peer"] = socket.clone().into();
    }
    if by_service || (address == own("server") && port == "8080") {
        headers["x-sidetrack-inbound"] = format!("{}:8080", own("server")).into();
        headers["x-sidetrack-inbound-peer"] = socket.clone().into();
        body = json!({"peer": "127.0.0.6:50000"}).to_string();
    }
    if port == "15021" {
        body = "ready\n".to_owned();
    }
    json!({"peer": dialed, "own": socket, "status": 200, "headers": headers, "body": body})
}

/// A cluster that can create what the test needs. Its agent sees the pods, and connections come out as promised
/// unless `twist` changes what a call sees.
fn cluster(twist: impl Fn(&Request, &mut Value) + Send + Sync + 'static) -> Result<Cluster> {
    let cluster = Cluster::new(&["node-1"])?;
    cluster.agent_pod("node-1", json!({"running": {}}))?;
    let created = Arc::new(Mutex::new(String::new()));
    let name = Arc::clone(&created);
    cluster.api.on_create(move |object| {
        if object["kind"] == "Namespace" {
            *name.lock() = object["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
        complete(object)
    });
    cluster.api.on_exec(move |request| {
        let words: Vec<&str> = request.words.iter().map(String::as_str).collect();
        let answer = match words.as_slice() {
            ["sidetrack", "pods", "-o", "json"] => {
                let namespace = created.lock().clone();
                json!(["client", "server", "down"].map(|pod| known(
                    &namespace,
                    pod,
                    PodState::Enrolled
                )))
            }
            ["python3", _, "call", address, port, _] => {
                let mut seen = call(&request.pod, &request.container, address, port);
                twist(request, &mut seen);
                seen
            }
            _ => Value::Null,
        };
        Answer::Output(
            vec![Piece::Out(answer.to_string().into_bytes())],
            End::Code(0),
        )
    });
    Ok(cluster)
}

/// Whether the test's namespace is there.
fn exists(cluster: &Cluster) -> bool {
    cluster.api.get("Namespace", "", "mine").is_ok()
}

#[test]
fn everything_as_promised_passes_and_is_removed() -> Result<()> {
    let cluster = cluster(|_, _| {})?;
    let ended = cluster.run(&TEST)?;
    ensure!(
        ended.code == 0 && ended.out.ends_with("17 passed, 0 failed\n"),
        "{ended:?}"
    );
    ensure!(!exists(&cluster), "{ended:?}");
    let rights = &rights::documented(1)? | &rights::documented(2)?;
    let missing: Vec<_> = rights::used(&cluster)
        .difference(&rights)
        .cloned()
        .collect();
    ensure!(missing.is_empty(), "not documented: {missing:?}");
    // Without a name the API server makes one.
    let ended = cluster.run(&["test", "--mesh-image", "mesh:1", "-o", "json"])?;
    let report = ended.json()?;
    let name = report["namespace"].as_str().context("a name")?;
    ensure!(
        report["passed"] == 17 && name.starts_with("sidetrack-test-"),
        "{report}"
    );
    ensure!(cluster.api.get("Namespace", "", name).is_err());
    Ok(())
}

#[test]
fn a_broken_promise_fails() -> Result<()> {
    // Everything goes past the sidecars.
    let cluster = cluster(|_, seen| seen["headers"] = json!({}))?;
    let ended = cluster.run(&TEST)?;
    ensure!(
        ended.code == 1 && ended.out.contains(" failed"),
        "{ended:?}"
    );
    ensure!(
        ended
            .out
            .contains("the connection went past the outbound sidecar"),
        "{ended:?}"
    );
    ensure!(!ended.out.contains(" 0 failed"), "{ended:?}");
    ensure!(!exists(&cluster), "{ended:?}");
    Ok(())
}

#[test]
fn keep_keeps_the_namespace() -> Result<()> {
    let cluster = cluster(|_, _| {})?;
    let words = [TEST.as_slice(), &["--keep"]].concat();
    let ended = cluster.run(&words)?;
    ensure!(
        ended.code == 0 && ended.errors.contains("kubectl delete namespace mine"),
        "{ended:?}"
    );
    let pod = cluster.api.get("Pod", "mine", "client")?;
    ensure!(pod["spec"]["containers"][0]["image"] == "mesh:1", "{pod}");
    Ok(())
}

#[test]
fn a_namespace_that_exists_is_untouched() -> Result<()> {
    let cluster = cluster(|_, _| {})?;
    cluster.api.apply(lab::injected::namespace("mine", None))?;
    let ended = cluster.run(&TEST)?;
    ensure!(
        ended.code == 1 && ended.errors.contains("namespace mine exists"),
        "{ended:?}"
    );
    ensure!(exists(&cluster), "it was deleted");
    Ok(())
}

#[test]
fn without_agents_nothing_is_created() -> Result<()> {
    let cluster = Cluster::new(&["node-1"])?;
    let ended = cluster.run(&TEST)?;
    ensure!(
        ended.code == 1 && ended.errors.contains("has no agent"),
        "{ended:?}"
    );
    ensure!(
        !cluster
            .api
            .requests()
            .iter()
            .any(|used| used.verb == "create")
    );
    Ok(())
}

#[test]
fn missing_rights_are_named() -> Result<()> {
    for kind in ["Namespace", "Pod"] {
        let cluster = cluster(|_, _| {})?;
        cluster
            .api
            .on_create(move |object| match object["kind"] == kind {
                true => Err((StatusCode::FORBIDDEN, "may not create it".to_owned())),
                false => complete(object),
            });
        let ended = cluster.run(&TEST)?;
        let named = ["needs the rights", "may not create it"]
            .iter()
            .all(|part| ended.errors.contains(part));
        ensure!(ended.code == 1 && named, "{ended:?}");
        ensure!(kind == "Namespace" || !exists(&cluster), "{ended:?}");
    }
    Ok(())
}

#[test]
fn an_image_that_cannot_be_pulled_is_named_at_once() -> Result<()> {
    let cluster = cluster(|_, _| {})?;
    cluster.api.on_create(|object| {
        complete(object)?;
        if object["metadata"]["name"] == "client" {
            object["status"]["containerStatuses"][0]["state"] =
                json!({"waiting": {"reason": "ErrImagePull", "message": "no such host"}});
        }
        Ok(())
    });
    let ended = cluster.run(&TEST)?;
    let named = ["mesh:1", "node-1", "no such host"]
        .iter()
        .all(|part| ended.errors.contains(part));
    ensure!(
        ended.code == 1 && named && ended.took < Duration::from_secs(3),
        "{ended:?}"
    );
    ensure!(!exists(&cluster), "{ended:?}");
    Ok(())
}

#[test]
fn a_pod_that_is_not_enrolled_is_named() -> Result<()> {
    let cluster = cluster(|_, _| {})?;
    cluster.agent("node-1", Agent::with(&[]))?;
    cluster
        .api
        .on_exec(|_| Answer::Output(vec![Piece::Out(b"[]".to_vec())], End::Code(0)));
    let ended = cluster.run(&TEST)?;
    let named = [
        "not enrolled after 3s",
        "client on node node-1",
        "does not know it",
    ];
    ensure!(
        ended.code == 1 && named.iter().all(|part| ended.errors.contains(part)),
        "{ended:?}"
    );
    ensure!(!exists(&cluster), "{ended:?}");
    Ok(())
}

#[test]
fn a_signal_ends_it_and_everything_is_removed() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let cluster = cluster(|_, _| {})?;
        cluster.api.on_exec(|_| Answer::Hang);
        let words = [TEST.as_slice(), &["--timeout", "60s"]].concat();
        let mut command = cluster.command(&words)?;
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        eventually(Duration::from_secs(10), || {
            ensure!(
                cluster
                    .api
                    .requests()
                    .iter()
                    .any(|used| used.resource == "pods/exec"),
                "nothing was asked"
            );
            Ok(())
        })?;
        kill(Pid::from_raw(child.id().try_into()?), signal)?;
        let output = child.wait_with_output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1) && errors.contains("ended by"),
            "{output:?}"
        );
        ensure!(!exists(&cluster), "{errors}");
    }
    Ok(())
}
