//! Pods, from RunPodSandbox to RemovePodSandbox.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::{
    agent::{NODE, gone},
    protocol::{APP, Connected, Dial, Identity, Listen, PROXY, ROOT, Request},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    fixture::{Fixture, VIP},
    image,
    kubelet::{Pod, dialed},
};

/// What sidetrack may add to the start of a pod.
const SOON: Duration = Duration::from_secs(2);

/// An injected pod, with an app that dials as its first instruction and then serves.
fn injected(node: &Fixture, namespace: &str) -> Result<Value> {
    let number = node.number();
    let actor = |requests: &[Request]| -> Result<Vec<String>> {
        let mut command = vec!["/sidetrack-actor".to_owned(), "--here".to_owned()];
        for request in requests {
            command.push(serde_json::to_string(request)?);
        }
        Ok(command)
    };
    let listen = |owner: &Identity, port: u16| -> Result<Request> {
        Ok(Request::Listen(Listen {
            address: format!("0.0.0.0:{port}").parse()?,
            owner: owner.clone(),
            sockets: 1,
            v6_only: false,
            transparent: false,
            mptcp: false,
        }))
    };
    let out = Request::Dial(Box::new(Dial::new(&APP, format!("{VIP}:80").parse()?)));
    Ok(json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": format!("web-{number}"), "namespace": namespace, "uid": node.lab.uid(number),
            "labels": {"app": "web", "security.istio.io/tlsMode": "istio"},
            "annotations": {"sidecar.istio.io/status": "{\"containers\":[\"istio-proxy\"]}"},
        },
        "spec": {
            "nodeName": NODE,
            "initContainers": [{
                "name": "istio-validation", "image": image::PROXY,
                "command": ["/sidetrack", "validate", "--timeout", "1"],
                "securityContext": {"runAsUser": 1337, "runAsGroup": 1337},
            }],
            "containers": [
                {
                    "name": "istio-proxy", "image": image::PROXY,
                    "command": actor(&[listen(&PROXY, 15001)?, listen(&PROXY, 15006)?])?,
                },
                {
                    "name": "app", "image": image::APP,
                    "command": actor(&[out, listen(&APP, 8080)?])?,
                },
            ],
        },
        "status": {"phase": "Pending"},
    }))
}

/// Runs all containers, and checks where the app's first connection and an inbound one end.
fn check_enrolled(node: &Fixture, pod: &Pod<'_>) -> Result<()> {
    let code = pod.run_init_containers()?;
    ensure!(
        code == 0,
        "validate: {code}, {:?}",
        pod.log("istio-validation")
    );
    let (out, arrived) = connections(node, pod)?;
    let vip = format!("{VIP}:80").parse()?;
    ensure!(
        out.accepted_by == 15001 && out.server.original_v4 == Ok(vip) && out.client.peer == vip,
        "outbound: {out:?}"
    );
    ensure!(arrived.accepted_by == 15006, "inbound: {arrived:?}");
    Ok(())
}

fn connections(node: &Fixture, pod: &Pod<'_>) -> Result<(Connected, Connected)> {
    pod.run_containers()?;
    let answers = pod.answers("app")?;
    let out = dialed(answers.first()).context("the app's first connection")?;
    let to = format!("{}:8080", pod.address()?).parse()?;
    let arrived = node.outside.connect(&ROOT, to)?;
    Ok((out.clone(), arrived))
}

cri_test!(intercepted_from_the_first_instruction_on);
fn intercepted_from_the_first_instruction_on(node: &Fixture) -> Result<()> {
    let object = injected(node, "shop")?;
    let pod = node.run(&object)?;
    ensure!(pod.took < SOON, "RunPodSandbox took {:?}", pod.took);
    check_enrolled(node, &pod)?;
    pod.remove()?;
    node.nothing_remains()
}

cri_test!(pods_that_are_not_opted_in_are_untouched);
fn pods_that_are_not_opted_in_are_untouched(node: &Fixture) -> Result<()> {
    let object = injected(node, "plain")?;
    let pod = node.run(&object)?;
    ensure!(pod.took < SOON, "RunPodSandbox took {:?}", pod.took);
    let code = pod.run_init_containers()?;
    let said = pod.log("istio-validation");
    ensure!(code == 126, "validate: {code}, {said:?}");
    ensure!(
        said.iter().any(|line| line.contains("not intercepted")),
        "{said:?}"
    );
    let (out, arrived) = connections(node, &pod)?;
    ensure!(out.accepted_by == 80, "outbound: {out:?}");
    ensure!(arrived.accepted_by == 8080, "inbound: {arrived:?}");
    pod.remove()?;
    node.nothing_remains()
}

cri_test!(a_pod_waits_until_the_agent_sees_it);
fn a_pod_waits_until_the_agent_sees_it(node: &Fixture) -> Result<()> {
    const LATE: Duration = Duration::from_millis(700);
    let object = injected(node, "shop")?;
    let pod = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(LATE);
            node.api.apply(object.clone())
        });
        Pod::run(node, object.clone())
    })?;
    ensure!(pod.took >= LATE, "it did not wait: {:?}", pod.took);
    check_enrolled(node, &pod)?;
    pod.remove()?;
    node.nothing_remains()
}

cri_test!(nothing_starts_without_an_agent);
fn nothing_starts_without_an_agent(node: &Fixture) -> Result<()> {
    node.end_agent(Signal::SIGTERM)?;
    let object = injected(node, "shop")?;
    let Err(error) = node.run(&object) else {
        bail!("it started");
    };
    let error = format!("{error:#}");
    for part in [
        "sidetrack-cni",
        "no agent answers",
        "Look at the sidetrack pod",
    ] {
        ensure!(error.contains(part), "kubelet would show: {error}");
    }
    node.containerd.nothing_remains(&node.lab)?;

    // What a node needs to get an agent.
    let system = node.run(&injected(node, "kube-system")?)?;
    let (out, _) = connections(node, &system)?;
    ensure!(out.accepted_by == 80, "outbound: {out:?}");

    // Kubelet tries again until the agent is back.
    let pod = thread::scope(|scope| {
        let starting = scope.spawn(|| until_it_starts(node, &object));
        node.start_agent()?;
        starting.join().map_err(|_| anyhow!("it panicked"))?
    })?;
    check_enrolled(node, &pod)?;
    system.remove()?;
    pod.remove()?;
    node.nothing_remains()
}

fn until_it_starts<'a>(node: &'a Fixture, object: &Value) -> Result<Pod<'a>> {
    const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
    let start = Instant::now();
    loop {
        match Pod::run(node, object.clone()) {
            Err(_) if start.elapsed() < WAIT_TIMEOUT => {}
            other => return other,
        }
    }
}

cri_test!(a_killed_agents_pod_is_intercepted);
fn a_killed_agents_pod_is_intercepted(node: &Fixture) -> Result<()> {
    let objects = [injected(node, "shop")?, injected(node, "shop")?];
    let [first, second] = [node.run(&objects[0])?, node.run(&objects[1])?];
    node.end_agent(Signal::SIGKILL)?;
    check_enrolled(node, &first)?;

    // The successor adopts both, the second with nothing in it but its sandbox.
    node.start_agent()?;
    for pod in [&first, &second] {
        node.lab.places().wait_enrolled(&pod.name())?;
    }
    check_enrolled(node, &second)?;
    first.remove()?;
    second.remove()?;
    // The successor has not seen the sandboxes, so it waits for others in their place.
    for object in &objects {
        node.delete(object)?;
    }
    node.nothing_remains()
}

cri_test!(removed_pods_leave_nothing);
fn removed_pods_leave_nothing(node: &Fixture) -> Result<()> {
    let object = injected(node, "shop")?;
    let places = node.lab.places();
    // The same pod twice: kubelet makes a sandbox anew when the first has ended.
    for _ in 0..2 {
        let pod = node.run(&object)?;
        check_enrolled(node, &pod)?;
        pod.stop()?;
        let waits = |pod: Option<&Value>| pod.is_some_and(|pod| pod["state"] == "waiting");
        let took = places.wait_pod(&pod.name(), waits)?;
        ensure!(
            took < Duration::from_secs(1),
            "it waits again after {took:?}"
        );
        // Kubelet may repeat these requests at any time.
        pod.stop()?;
        pod.remove()?;
        node.nothing_remains()?;
    }
    node.delete(&object)?;
    let name = format!("shop/{}", object["metadata"]["name"].as_str().unwrap_or(""));
    places.wait_pod(&name, gone)?;
    node.nothing_remains()
}
