//! Pods that start: with the CNI plugin in a chain of real plugins, and without it.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra, NODE, binary},
    apiserver::ApiServer,
    deploy::{USED, USED_FOR_TAINT},
    injected::{LABEL, injected},
    network::{Lab, PodNet},
    node::{Node, VIP},
    protocol::{APP, Dial, PROXY, ROOT},
    runtime::{Added, Runtime, Sandbox, plugin},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    OwnTest,
    fixture::{at, nothing_is_left},
};

/// The sidecar's user.
const PROXY_USER: u32 = 1337;

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("cni::pods_start_intercepted", starts),
        ("cni::what_must_not_start", refused),
        ("cni::the_agent_goes_and_comes", restarts),
        ("cni::the_agent_is_replaced_meanwhile", handed_over),
        ("cni::an_unknown_namespace", unknown_namespace),
        ("cni::another_pod_of_the_same_name", same_name),
        ("cni::a_recreated_sandbox", recreated),
        ("cni::the_plugin_is_kept_and_taken_away", kept),
        ("cni::bad_input", bad_input),
        ("cni::validation", validation),
        ("cni::without_the_plugin", without),
        ("cni::before_the_sidecar", before_sidecar),
        ("cni::the_taint_goes", taint),
    ]
}

fn starts() -> Result<()> {
    let mut node = Node::new()?;
    let mut running = Vec::new();
    for number in 1..=5 {
        let (name, uid) = (format!("web-{number}"), node.lab.uid(number));
        node.api.apply(injected(&name, &uid))?;
        let sandbox = node.ready(&name, &uid)?;
        let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
        ensure!(
            accepted == 15001,
            "{name}: the first connection went to {accepted}"
        );
        ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
        // The last plugin before ours is tuning, which passes on what it is given.
        ensure!(
            sandbox.result["interfaces"].is_array() && sandbox.result["cniVersion"] == "1.0.0",
            "{}",
            sandbox.result
        );
        running.push((name, actor, sandbox));
    }
    // One that nobody has asked for.
    let uid = node.lab.uid(6);
    let mut plain = injected("plain", &uid);
    plain["spec"]["containers"] = json!([{"name": "app", "image": "httpbin"}]);
    node.api.apply(plain)?;
    let sandbox = node.ready("plain", &uid)?;
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 80, "{accepted}");
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    drop(actor);
    node.runtime.delete(&mut node.lab, &sandbox)?;

    for (name, actor, sandbox) in running {
        drop(actor);
        node.runtime.delete(&mut node.lab, &sandbox)?;
        let again = node.runtime.ours("DEL", &sandbox)?;
        ensure!(again.status.success(), "twice: {again:?}");
        node.places().wait_pod(&format!("shop/{name}"), |pod| {
            pod.is_some_and(|pod| pod["state"] == "waiting")
        })?;
        node.api.delete("Pod", "shop", &name)?;
    }
    nothing_is_left(node.places())?;
    node.end()
}

fn refused() -> Result<()> {
    let mut node = Node::new()?;
    let uid = node.lab.uid(1);
    let text = |error: &Value, parts: &[&str]| {
        let all = error.to_string();
        ensure!(parts.iter().all(|part| all.contains(part)), "{all}");
        ensure!(
            error["code"].is_u64() && error["cniVersion"] == "1.0.0",
            "{all}"
        );
        Ok(())
    };
    // The API server has not said anything about it.
    text(&node.failed("web", &uid)?, &["shop/web", "has not heard"])?;
    // It cannot be followed.
    let mut pod = injected("web", &uid);
    pod["metadata"]["annotations"]["traffic.sidecar.istio.io/excludeOutboundPorts"] = json!("http");
    node.api.apply(pod)?;
    text(
        &node.failed("web", &uid)?,
        &["shop/web", "must not start", "excludeOutboundPorts"],
    )?;
    // Another pod of that name.
    text(&node.failed("web", &node.lab.uid(9))?, &["has not heard"])?;
    // One that its istio-init looks after starts, and is left alone by who asks again.
    let other = node.lab.uid(2);
    let mut pod = injected("old", &other);
    pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("TPROXY");
    pod["spec"]["initContainers"][0]["name"] = json!("istio-init");
    node.api.apply(pod)?;
    let sandbox = node.ready("old", &other)?;
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    // A static pod is nobody's.
    node.ready("static", "0123456789abcdef0123456789abcdef")?;

    // One of those that need an agent.
    let needs = node.lab.uid(3);
    node.api.apply(injected("needs", &needs))?;
    let ours = node.ready("needs", &needs)?;

    // Nobody answers.
    node.agent = None;
    node.api.apply(injected("web", &uid))?;
    text(
        &node.failed("web", &uid)?,
        &[
            "no agent answers",
            "sidetrack pod on this node",
            "install-cni --remove",
        ],
    )?;
    ensure!(!node.runtime.ours("CHECK", &ours)?.status.success());
    // The node's network is not broken for that: kubelet would not even start an agent.
    ensure!(status(&node)?.status.success());
    // But what a node needs to have an agent.
    let list = node.runtime.list();
    let edited = fs::read_to_string(&list)?.replace("kube-system", "shop");
    fs::write(&list, edited)?;
    let sandbox = node.ready("web", &uid)?;
    // CRI-O asks at once.
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    node.end()
}

fn status(node: &Node) -> Result<std::process::Output> {
    let nobody = Sandbox {
        netns: "none".to_owned(),
        container: "none".to_owned(),
        arguments: String::new(),
        result: Value::Null,
        took: Duration::ZERO,
    };
    node.runtime.ours("STATUS", &nobody)
}

fn restarts() -> Result<()> {
    let mut node = Node::new()?;
    ensure!(status(&node)?.status.success());
    let uid = node.lab.uid(1);
    node.api.apply(injected("web", &uid))?;
    let sandbox = node.ready("web", &uid)?;
    // Before any process is in it.
    if let Some(agent) = &mut node.agent {
        agent.end(Signal::SIGKILL)?;
    }
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 15001, "without an agent: {accepted}");
    node.agent = None;
    // Nobody comes within two seconds.
    let uid = node.lab.uid(2);
    node.api.apply(injected("late", &uid))?;
    node.failed("late", &uid)?;
    node.start_agent()?;
    let late = node.ready("late", &uid)?;
    let (late_actor, accepted) = node.first_connection(&late, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    ensure!(node.runtime.ours("CHECK", &sandbox)?.status.success());
    drop((actor, late_actor));
    node.end()
}

/// An ADD waits while the agent it has asked ends and another comes.
fn handed_over() -> Result<()> {
    let mut node = Node::new()?;
    node.patience = 30;
    node.agent = None;
    node.start_agent()?;
    let uid = node.lab.uid(1);
    let Node {
        agent,
        api,
        runtime,
        lab,
        ..
    } = &mut node;
    let places = lab.places().clone();
    let (added, successor) = thread::scope(|scope| {
        let adding = scope.spawn(|| runtime.add(lab, "web", &uid));
        thread::sleep(Duration::from_millis(500));
        let successor = agent
            .as_mut()
            .context("an agent")
            .and_then(|agent| agent.end(Signal::SIGTERM))
            .and_then(|_| {
                Agent::start_with(
                    &places,
                    &Extra {
                        api: Some(api),
                        ..Extra::default()
                    },
                )
            })
            .and_then(|successor| api.apply(injected("web", &uid)).map(|()| successor));
        (adding.join().expect("no panic"), successor)
    });
    let successor = successor?;
    let Added::Ready(sandbox) = added? else {
        return Err(anyhow!("it did not wait\n{}", node.places().log()));
    };
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    drop((actor, successor));
    node.end()
}

/// A pod of a namespace that nobody has told the agent of: its label may say anything.
fn unknown_namespace() -> Result<()> {
    let mut node = Node::new()?;
    let uid = node.lab.uid(1);
    let mut pod = injected("web", &uid);
    pod["metadata"]["namespace"] = json!("new");
    node.api.apply(pod)?;
    let error = node.failed("new/web", &uid)?;
    ensure!(
        error.to_string().contains("does not know the labels"),
        "{error}"
    );
    let Node {
        api, runtime, lab, ..
    } = &mut node;
    let added = thread::scope(|scope| {
        let adding = scope.spawn(|| runtime.add(lab, "new/web", &uid));
        thread::sleep(Duration::from_millis(300));
        let told = api.apply(lab::injected::namespace("new", Some("enabled")));
        told.and(adding.join().expect("no panic"))
    });
    let Added::Ready(sandbox) = added? else {
        return Err(anyhow!("it does not start\n{}", node.places().log()));
    };
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    drop(actor);
    // One that says itself what is to become of it needs no label of its namespace.
    let uid = node.lab.uid(2);
    let mut pod = injected("own", &uid);
    pod["metadata"]["namespace"] = json!("newer");
    pod["metadata"]["labels"][LABEL] = json!("disabled");
    node.api.apply(pod)?;
    node.ready("newer/own", &uid)?;
    node.end()
}

/// Deleted by force and created anew under its name: as long as the old one runs it is intercepted.
fn same_name() -> Result<()> {
    let mut node = Node::new()?;
    let (old, new) = (node.lab.uid(1), node.lab.uid(2));
    node.api.apply(injected("web", &old))?;
    let sandbox = node.ready("web", &old)?;
    let (actor, _) = node.first_connection(&sandbox, &old)?;
    node.api.delete("Pod", "shop", "web")?;
    node.api.apply(injected("web", &new))?;
    let successor = node.ready("web", &new)?;
    let (other, accepted) = node.first_connection(&successor, &new)?;
    ensure!(accepted == 15001, "{accepted}");
    let still = |actor: &lab::actor::Actor| -> Result<u16> {
        let connected = actor.dial(Dial::new(&APP, at(VIP, 80)))?;
        Ok(connected.map_or_else(|errno| errno as u16, |connected| connected.accepted_by))
    };
    ensure!(still(&actor)? == 15001);
    // The next agent has heard of the new one only.
    node.agent = None;
    node.start_agent()?;
    node.places().wait_enrolled("shop/web")?;
    thread::sleep(Duration::from_millis(700));
    ensure!(still(&actor)? == 15001);
    drop(actor);
    node.places().wait_rows("POD_BY_NETNS", 1)?;
    drop(other);
    node.end()
}

fn recreated() -> Result<()> {
    let mut node = Node::new()?;
    let uid = node.lab.uid(1);
    node.api.apply(injected("web", &uid))?;
    let first = node.ready("web", &uid)?;
    let (actor, _) = node.first_connection(&first, &uid)?;
    // The node's runtime loses it without a word, and makes another.
    drop(actor);
    let second = node.ready("web", &uid)?;
    ensure!(!node.runtime.ours("CHECK", &first)?.status.success());
    let (actor, accepted) = node.first_connection(&second, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    // The late DEL of the first changes nothing.
    node.runtime.delete(&mut node.lab, &first)?;
    ensure!(node.runtime.ours("CHECK", &second)?.status.success());
    // GC with the second in the list, and without.
    drop(actor);
    collect(&node, &[&second.container])?;
    ensure!(node.runtime.ours("CHECK", &second)?.status.success());
    collect(&node, &[])?;
    ensure!(!node.runtime.ours("CHECK", &second)?.status.success());

    // What still runs in a sandbox whose place another takes stays intercepted until it ends.
    let uid = node.lab.uid(2);
    node.api.apply(injected("slow", &uid))?;
    let first = node.ready("slow", &uid)?;
    let (actor, _) = node.first_connection(&first, &uid)?;
    let second = node.ready("slow", &uid)?;
    let connected = actor.dial(Dial::new(&APP, at("10.109.118.31", 80)))?;
    ensure!(
        matches!(&connected, Ok(connected) if connected.accepted_by == 15001),
        "{connected:?}"
    );
    ensure!(node.runtime.ours("CHECK", &second)?.status.success());
    node.places().wait_rows("POD_BY_NETNS", 2)?;
    drop(actor);
    node.places().wait_rows("POD_BY_NETNS", 1)?;
    node.end()
}

fn collect(node: &Node, valid: &[&str]) -> Result<()> {
    let valid: Vec<Value> = valid
        .iter()
        .map(|id| json!({"containerID": id, "ifname": "eth0"}))
        .collect();
    let config = json!({
        "cniVersion": "1.1.0", "name": "lab", "type": "sidetrack-cni",
        "socket": node.places().socket, "cni.dev/valid-attachments": valid,
    });
    let output = plugin(&[("CNI_COMMAND", "GC")], config.to_string().as_bytes())?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

fn kept() -> Result<()> {
    let mut node = Node::new()?;
    let list = node.runtime.list();
    let ours = fs::read_to_string(&list)?;
    let theirs = {
        let mut config = node.runtime.read()?;
        config["plugins"].as_array_mut().context("plugins")?.pop();
        config.to_string()
    };
    for _ in 0..3 {
        fs::write(&list, &theirs)?;
        node.wait_plugin(true)?;
    }
    ensure!(
        fs::read_to_string(&list)?
            .contains("\"excludeNamespaces\":[\"kube-system\",\"sidetrack-system\"]")
    );
    // What cannot be read is a problem that people see, and is left alone.
    fs::write(&list, "{")?;
    let start = Instant::now();
    while !node.places().json(&["status", "-o", "json"])?["agent"]["problems"]
        .to_string()
        .contains("CNI plugin")
    {
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "no problem is shown"
        );
        thread::sleep(Duration::from_millis(20));
    }
    ensure!(fs::read_to_string(&list)? == "{");
    fs::write(&list, &ours)?;
    node.wait_plugin(true)?;

    drop(node.agent.take());
    node.wait_plugin(true)?;
    node.runtime.install(&node.lab, &["--remove"])?;
    node.wait_plugin(false)?;
    let left: Value = serde_json::from_str(&fs::read_to_string(&list)?)?;
    ensure!(left == serde_json::from_str::<Value>(&theirs)?, "{left}");
    ensure!(!fs::exists(format!(
        "{}/sidetrack-cni",
        node.runtime.bin()
    ))?);
    node.end()
}

/// Nothing a runtime could say wrong makes the plugin do anything but explain.
fn bad_input() -> Result<()> {
    let lab = Lab::new()?;
    let pod = lab.outside();
    let netns = pod.path();
    let good = json!({
        "cniVersion": "1.0.0", "name": "n", "type": "sidetrack-cni",
        "socket": lab.dir().join("nobody"), "timeoutSeconds": 1, "prevResult": {"cniVersion": "1.0.0"},
    });
    let with = |field: &str, value: Value| {
        let mut config = good.clone();
        config[field] = value;
        config.to_string().into_bytes()
    };
    let config = good.to_string().into_bytes();
    let add = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", netns.as_str()),
        ("CNI_IFNAME", "eth0"),
        (
            "CNI_ARGS",
            "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c",
        ),
        ("CNI_PATH", "/nowhere"),
    ];
    let without = |name: &str| -> Vec<(&str, &str)> {
        add.iter()
            .copied()
            .filter(|(key, _)| *key != name)
            .collect()
    };
    let replaced = |name: &'static str, value: &'static str| -> Vec<(&str, &str)> {
        let mut all = without(name);
        all.push((name, value));
        all
    };
    let mut garbage = vec![0_u8; 100_000];
    garbage
        .iter_mut()
        .zip(0_u32..)
        .for_each(|(byte, n)| *byte = ((n * 7) >> 3) as u8);
    let huge = vec![b' '; 5 << 20];
    let deep = "[".repeat(100_000).into_bytes();
    for (variables, stdin, code, part) in [
        (add.to_vec(), &b""[..], 6, "stdin"),
        (add.to_vec(), &garbage, 6, "stdin"),
        (add.to_vec(), &huge, 6, "larger than"),
        (add.to_vec(), &deep, 6, "stdin"),
        (add.to_vec(), b"{}", 1, "version"),
        (
            add.to_vec(),
            &with("cniVersion", json!("0.2.0")),
            1,
            "0.2.0",
        ),
        (
            add.to_vec(),
            &with("cniVersion", json!(1)),
            6,
            "invalid type",
        ),
        (add.to_vec(), &with("socket", Value::Null), 7, "socket"),
        (add.to_vec(), &with("prevResult", Value::Null), 7, "chained"),
        (
            add.to_vec(),
            &with("timeoutSeconds", json!(-1)),
            6,
            "invalid",
        ),
        (add.to_vec(), &config, 11, "no agent answers"),
        (without("CNI_CONTAINERID"), &config, 4, "CNI_CONTAINERID"),
        (without("CNI_NETNS"), &config, 4, "CNI_NETNS"),
        (without("CNI_IFNAME"), &config, 4, "CNI_IFNAME"),
        (replaced("CNI_COMMAND", "UPDATE"), &config, 4, "UPDATE"),
        (replaced("CNI_CONTAINERID", "../x"), &config, 4, "../x"),
        (
            replaced("CNI_NETNS", "/nowhere"),
            &config,
            4,
            "does not exist",
        ),
        (
            replaced("CNI_NETNS", "/etc/passwd"),
            &config,
            4,
            "no network namespace",
        ),
        (
            replaced("CNI_NETNS", "/dev/zero"),
            &config,
            4,
            "no network namespace",
        ),
        (replaced("CNI_ARGS", "nonsense"), &config, 4, "KEY=VALUE"),
        (
            replaced("CNI_ARGS", "K8S_POD_NAME=b"),
            &config,
            4,
            "must have both",
        ),
        (
            replaced("CNI_ARGS", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b"),
            &config,
            4,
            "K8S_POD_UID",
        ),
    ] {
        let output = plugin(&variables, stdin)?;
        let said: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("not JSON: {output:?}"))?;
        let text = said.to_string();
        ensure!(
            !output.status.success() && said["code"] == code && text.contains(part),
            "wanted {code} and {part:?}: {output:?}"
        );
    }
    // What is no pod, and what is in the node's own network, is nobody's business.
    for variables in [
        without("CNI_ARGS"),
        replaced("CNI_NETNS", "/proc/self/ns/net"),
    ] {
        let output = plugin(&variables, &config)?;
        ensure!(
            output.status.success() && output.stdout == br#"{"cniVersion":"1.0.0"}"#,
            "{output:?}"
        );
    }
    // DEL never stands in the way.
    let gone = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1")];
    ensure!(plugin(&gone, &config)?.status.success());
    let said = plugin(&[("CNI_COMMAND", "VERSION")], b"")?;
    ensure!(
        String::from_utf8_lossy(&said.stdout).contains("1.1.0"),
        "{said:?}"
    );
    // The agent's own socket.
    let agent = Agent::start(lab.places())?;
    for body in [
        "",
        "{",
        "[]",
        r#"{"command":"add"}"#,
        r#"{"command":"nothing"}"#,
        r#"{"command":"add","sandbox":{"netns":7}}"#,
    ] {
        let socket = lab.places().socket.display().to_string();
        let code = lab::command::run_words(&[
            "curl",
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "--unix-socket",
            &socket,
            "-H",
            "content-type: application/json",
            "-d",
            body,
            "http://x/v1/sandboxes",
        ])?;
        ensure!(code.starts_with('4'), "{body:?}: {code}");
    }
    // As long as it likes to wait.
    let sandbox = json!({
        "namespace": "a", "name": "b", "uid": "c", "container": "d", "netns": netns,
        "inode": fs::metadata(&netns)?.ino(), "descriptor": 0,
    });
    let patient =
        json!({"command": "add", "sandbox": sandbox, "patience": {"secs": u64::MAX, "nanos": 0}});
    let socket = lab.places().socket.display().to_string();
    let answer = lab::command::run_words(&[
        "curl",
        "-s",
        "--unix-socket",
        &socket,
        "-H",
        "content-type: application/json",
        "-d",
        &patient.to_string(),
        "http://x/v1/sandboxes",
    ])?;
    ensure!(answer.contains("no manifest names it"), "{answer}");
    ensure!(lab.places().json(&["status", "-o", "json"])?["agent"]["ready"] == true);
    drop(agent);
    Ok(())
}

/// What `sidetrack validate` says in a pod, and how it ends.
fn validate(pod: &PodNet, user: u32, more: &[&str]) -> Result<(i32, String)> {
    let words = [&["validate"], more].concat();
    let output = pod.command(user, &binary()?, &words).output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code().context("a signal ended it")?,
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

fn validation() -> Result<()> {
    let mut node = Node::new()?;
    let (old, new, none) = (node.lab.uid(1), node.lab.uid(2), node.lab.uid(3));
    node.api.apply(injected("old", &old))?;
    let mut current = injected("new", &new);
    current["spec"]["containers"][1]["image"] = json!("docker.io/istio/proxyv2:1.28.0");
    current["spec"]["containers"][1]["env"] =
        json!([{"name": "ISTIO_DUAL_STACK", "value": "true"}]);
    node.api.apply(current)?;
    let mut out = injected("out", &none);
    out["metadata"]["labels"][LABEL] = json!("disabled");
    node.api.apply(out)?;
    for (name, uid, ipv6) in [("old", &old, "auto"), ("new", &new, "yes")] {
        let sandbox = node.ready(name, uid)?;
        let pod = sandbox.pod(&node.lab, uid)?;
        let (code, text) = validate(&pod, PROXY_USER, &["--ipv6", ipv6])?;
        ensure!(
            code == 0 && text.contains("this pod is intercepted"),
            "{name}: {code} {text}"
        );
        ensure!(text.contains("IPv6") == (ipv6 == "yes"), "{text}");
        // Anybody else's connections prove nothing, and it says so.
        let (code, text) = validate(&pod, 1000, &["--timeout", "1"])?;
        ensure!(code == 126 && text.contains("user 1000"), "{code} {text}");
        // After the sidecar has started its ports are taken.
        let sidecar = pod.actor()?;
        sidecar.listen(&PROXY, at("0.0.0.0", 15006))?;
        let (code, text) = validate(&pod, PROXY_USER, &[])?;
        ensure!(
            code == 1 && text.contains("before the sidecar"),
            "{code} {text}"
        );
        drop(sidecar);
    }
    let sandbox = node.ready("out", &none)?;
    let pod = sandbox.pod(&node.lab, &none)?;
    let start = Instant::now();
    let (code, text) = validate(&pod, PROXY_USER, &[])?;
    let took = start.elapsed();
    ensure!(
        code == 126 && text.contains("not intercepted"),
        "{code} {text}"
    );
    ensure!((5..7).contains(&took.as_secs()), "{took:?}");
    // It goes on trying: opted in meanwhile.
    let (code, text) = thread::scope(|scope| {
        let trial = scope.spawn(|| validate(&pod, PROXY_USER, &["-o", "json"]));
        thread::sleep(Duration::from_millis(500));
        let edited = node.api.edit("Pod", "shop", "out", |pod| {
            pod["metadata"]["labels"] = json!({});
        });
        edited.and_then(|()| trial.join().expect("no panic"))
    })?;
    ensure!(
        code == 0 && text.contains("\"intercepted\": true"),
        "{code} {text}"
    );
    node.end()
}

/// Without the plugin: from a pod's first process to its enrollment.
fn without() -> Result<()> {
    let mut node = Node::new()?;
    node.runtime.install(&node.lab, &["--remove"])?;
    drop(node.agent.take());
    let agent = Agent::start_with(
        node.lab.places(),
        &Extra {
            api: Some(&node.api),
            variables: &[("RUST_LOG", "info,sidetrack=debug")],
            ..Extra::default()
        },
    )?;
    let mut took = Vec::new();
    for number in 1..=5 {
        let (name, uid) = (format!("web-{number}"), node.lab.uid(number));
        node.api.apply(injected(&name, &uid))?;
        node.runtime.install(&node.lab, &["--remove"])?;
        let sandbox = node.ready(&name, &uid)?;
        let actor = sandbox.pod(&node.lab, &uid)?.actor()?;
        took.push(node.places().wait_enrolled(&format!("shop/{name}"))?);
        drop(actor);
    }
    took.sort();
    // Asking for the pod takes a while itself; who only looked twice a second would need a quarter of
    // a second on average.
    ensure!(
        took[1] < Duration::from_millis(200),
        "{took:?}\n{}",
        node.places().log()
    );
    drop(agent);
    node.end()
}

/// Init containers of pods that ask for it reach the network until the sidecar first listens.
fn before_sidecar() -> Result<()> {
    let mut node = Node::new()?;
    let (with, without) = (node.lab.uid(1), node.lab.uid(2));
    let mut pod = injected("with", &with);
    pod["metadata"]["annotations"]["sidetrack.dev/before-sidecar"] = json!("passthrough");
    node.api.apply(pod)?;
    node.api.apply(injected("without", &without))?;
    let sandbox = node.ready("with", &with)?;
    let pod = sandbox.pod(&node.lab, &with)?;
    let client = pod.actor()?;
    let dial = || client.dial(Dial::new(&APP, at(VIP, 80)));
    let accepted = |result: Result<lab::protocol::Connected, i32>| {
        result.map(|connected| connected.accepted_by)
    };
    ensure!(accepted(dial()?) == Ok(80));
    // The gate listens on the sidecar's ports, too; it is not the sidecar.
    let (code, text) = validate(&pod, PROXY_USER, &[])?;
    ensure!(code == 0, "{text}");
    ensure!(accepted(dial()?) == Ok(80));
    // What arrives is not let past.
    let arrived = node
        .outside
        .dial(Dial::new(&ROOT, std::net::SocketAddr::new(pod.v4, 80)))?;
    ensure!(arrived.is_err(), "{arrived:?}");
    // Another agent changes nothing.
    node.agent = None;
    ensure!(accepted(dial()?) == Ok(80));
    node.start_agent()?;
    node.places().wait_enrolled("shop/with")?;
    ensure!(accepted(dial()?) == Ok(80));
    let row = node.places().pod("shop/with")?.context("the pod")?;
    ensure!(
        row["before_sidecar"] == true && row["connections"]["before_sidecar"] == 4,
        "{row}"
    );
    let explained = node.places().json(&[
        "explain",
        "shop/with",
        "outbound",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--dst",
        "10.109.118.31:80",
        "-o",
        "json",
    ])?;
    ensure!(
        explained["verdict"] == "untouched" && explained["name"] == "before-sidecar",
        "{explained}"
    );
    // The sidecar comes, and goes: never again.
    let sidecar = pod.actor()?;
    let listener = sidecar.listen(&PROXY, at("0.0.0.0", 15001))?;
    ensure!(accepted(dial()?) == Ok(15001));
    sidecar.close(listener, 0)?;
    ensure!(accepted(dial()?) == Err(111), "past a sidecar that is down");
    node.agent = None;
    node.start_agent()?;
    node.places().wait_enrolled("shop/with")?;
    ensure!(accepted(dial()?) == Err(111), "past a sidecar that is down");
    ensure!(node.places().map("BEFORE_SIDECAR")?.is_empty());

    // Without the annotation it is as with iptables.
    let sandbox = node.ready("without", &without)?;
    let other = sandbox.pod(&node.lab, &without)?.actor()?;
    let refused = other.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(accepted(refused) == Err(111));
    // Asked for when it runs already, it is too late.
    node.api.edit("Pod", "shop", "without", |pod| {
        pod["metadata"]["annotations"]["sidetrack.dev/before-sidecar"] = json!("passthrough");
    })?;
    node.places().wait_pod("shop/without", |pod| {
        pod.is_some_and(|pod| pod["policy"]["before_sidecar"] == true)
    })?;
    let refused = other.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(accepted(refused) == Err(111));
    drop((client, other, sidecar));
    node.end()
}

/// Nobody is let onto the node before the agent is ready and the plugin in place.
fn taint() -> Result<()> {
    let lab = Lab::new()?;
    let api = ApiServer::start(lab.dir())?;
    let runtime = Runtime::new(&lab)?;
    let other = json!({"key": "dedicated", "value": "db", "effect": "NoSchedule"});
    let ours = json!({"key": "sidetrack.dev/not-ready", "effect": "NoSchedule"});
    api.apply(json!({
        "kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE, "uid": "n"},
        "spec": {"taints": [ours, other]},
    }))?;
    let aside = lab.dir().join("aside");
    fs::rename(runtime.list(), &aside)?;
    let (bin, conf) = (runtime.bin(), runtime.conf());
    let agent = Agent::start_with(
        lab.places(),
        &Extra {
            api: Some(&api),
            arguments: &[
                "--remove-taint",
                "--cni-bin-dir",
                &bin,
                "--cni-conf-dir",
                &conf,
            ],
            ..Extra::default()
        },
    )?;
    let taints = || Ok::<_, anyhow::Error>(api.get("Node", "", NODE)?["spec"]["taints"].clone());
    thread::sleep(Duration::from_secs(1));
    ensure!(
        taints()? == json!([ours, other]),
        "not before the plugin is there"
    );
    fs::rename(&aside, runtime.list())?;
    let start = Instant::now();
    while taints()? != json!([other]) {
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "{}\n{}",
            taints()?,
            lab.places().log()
        );
        thread::sleep(Duration::from_millis(20));
    }
    for request in api.requests() {
        let request = (request.verb, request.group, request.resource);
        let allowed = USED.contains(&request) || USED_FOR_TAINT.contains(&request);
        ensure!(allowed, "RBAC does not allow {request:?}");
    }
    drop(agent);
    Ok(())
}
