//! The API server goes away, and the agent restarts meanwhile.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Extra, gone},
    apiserver::ApiServer,
    injected::{injected, namespace},
    node::Node,
    protocol::ROOT,
    sidecar,
};
use nix::sys::signal::Signal;

use super::{accepted_by, wait_for};
use crate::fixture::{ClusterFixture, at};

kernel_test!(outages_and_restarts);
fn outages_and_restarts() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let outside = node.lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let mut clients = Vec::new();
    let mut sidecars = Vec::new();
    for number in [2_u8, 3, 4] {
        let name = format!("web-{number}");
        let pod = node
            .lab
            .pod(&name, number)?
            .under_kubelet(&node.lab, &node.lab.uid(number.into()))?;
        sidecars.push(sidecar::start(&pod, &[])?);
        clients.push(pod.actor()?);
        node.api
            .apply(injected(&name, &node.lab.uid(number.into())))?;
        node.wait_enrollment(&format!("shop/{name}"), true)?;
    }
    let all_redirected = |clients: &[Actor]| -> Result<()> {
        for client in clients {
            ensure!(accepted_by(client)? == 15001, "a pod lost interception");
        }
        Ok(())
    };
    wait_for(|| Ok(enrolled_events(&node.api) == 3))?;
    // Connections that are cut, events that come twice, versions that are gone.
    node.api.bookmark();
    node.api.repeat_last();
    node.api.disconnect();
    node.api.compact();
    node.api.disconnect();
    // What comes after all that arrives, and was all that there was to do.
    node.api.apply(injected("late", &node.lab.uid(9)))?;
    node.places().wait_pod("shop/late", |pod| pod.is_some())?;
    node.api.delete("Pod", "shop", "late")?;
    node.places().wait_pod("shop/late", gone)?;
    all_redirected(&clients)?;

    // The API server goes; a pod is deleted, and the agent killed and started anew meanwhile.
    node.api.down();
    node.api.delete("Pod", "shop", "web-4")?;
    drop((clients.pop(), sidecars.pop()));
    wait_for(|| Ok(node.places().problems()?.contains("watch pods")))?;
    all_redirected(&clients)?;
    node.agent.end(Signal::SIGKILL)?;
    all_redirected(&clients)?;
    node.agent = Agent::spawn_with(node.lab.places(), &Extra::api(&node.api))?;
    wait_for(|| Ok(node.places().problems()?.contains("watch pods")))?;
    let status = node.places().json(&["status", "-o", "json"])?;
    ensure!(status["agent"]["ready"] == false, "{status}");
    all_redirected(&clients)?;
    node.api.up();
    wait_for(|| Ok(node.places().problems()? == "[]"))?;
    node.places().wait_pod("shop/web-4", gone)?;
    wait_for(|| Ok(node.places().map("POD_BY_NETNS")?.len() == 2))?;
    all_redirected(&clients)?;
    // Slow answers change nothing but the time.
    node.api.delay(Duration::from_millis(300));
    node.api.disconnect();
    drop((clients.pop(), sidecars.pop()));
    node.api.delete("Pod", "shop", "web-3")?;
    node.places().wait_pod("shop/web-3", gone)?;
    node.places().wait_enrolled("shop/web-2")?;
    // The successor knew the pods already: no event is sent twice.
    ensure!(enrolled_events(&node.api) == 3, "{:?}", node.api.events());
    Ok(())
}

kernel_test!(namespaces_alone_cannot_be_watched);
/// What is enrolled stays. A pod that is not opted in does not start: its namespace may have been labeled.
fn namespaces_alone_cannot_be_watched() -> Result<()> {
    const PROBLEM: &str = "watch namespaces";
    let mut node = Node::new()?;
    node.api.apply(namespace("quiet", None))?;
    let plain = |node: &Node, number| -> Result<String> {
        let (name, uid) = (format!("plain-{number}"), node.lab.uid(number));
        let mut pod = injected(&name, &uid);
        pod["metadata"]["namespace"] = "quiet".into();
        node.api.apply(pod)?;
        node.places()
            .wait_pod(&format!("quiet/{name}"), |pod| pod.is_some())?;
        Ok(name)
    };
    let (web, uid) = ("web", node.lab.uid(1));
    node.api.apply(injected(web, &uid))?;
    let sandbox = node.ready(web, &uid)?;
    node.api.forbid("Namespace")?;
    node.api.disconnect();
    wait_for(|| Ok(node.places().problems()?.contains(PROBLEM)))?;
    ensure!(
        !node.places().problems()?.contains("watch pods"),
        "{}",
        node.places().problems()?
    );
    let (_actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    let name = plain(&node, 2)?;
    let uid = node.lab.uid(2);
    let said = node.failed(&format!("quiet/{name}"), &uid)?.to_string();
    ensure!(said.contains("does not know the labels"), "{said}");
    node.api.permit("Namespace")?;
    wait_for(|| Ok(node.places().problems()? == "[]"))?;
    node.ready(&format!("quiet/{name}"), &uid).map(drop)
}

kernel_test!(an_event_that_is_refused_is_sent_again);
fn an_event_that_is_refused_is_sent_again() -> Result<()> {
    let mut node = ClusterFixture::new()?;
    node.label("Namespace", "shop", Some("enabled"))?;
    let uid = node.lab.uid(2);
    let pod = node.lab.pod("web", 2)?.under_kubelet(&node.lab, &uid)?;
    let _sidecar = sidecar::start(&pod, &[])?;
    node.api.refuse_events(2);
    node.api.apply(injected("web", &uid))?;
    node.wait_enrollment("shop/web", true)?;
    wait_for(|| Ok(enrolled_events(&node.api) == 1))?;
    // Not at once: a server that is busy would be busier.
    let attempts = node.api.event_attempts();
    let pauses = attempts.windows(2).map(|pair| pair[1] - pair[0]);
    let pauses: Vec<Duration> = pauses.collect();
    ensure!(
        pauses.len() == 2
            && pauses[0] >= Duration::from_millis(1_900)
            && pauses[1] >= Duration::from_millis(3_900),
        "{pauses:?}"
    );
    Ok(())
}

fn enrolled_events(api: &ApiServer) -> usize {
    let events = api.events();
    let enrolled = events.iter().filter(|event| event["reason"] == "Enrolled");
    enrolled.count()
}
