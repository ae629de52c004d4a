//! What an agent asks of the API server: of a whole cluster's objects, those of its own node and the namespaces' names.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::gone,
    apiserver::{ApiServer, Traffic},
    command::Process,
    injected::{injected, namespace},
    network::Lab,
    wait::eventually,
};
use serde_json::json;

use crate::fixture::start_agent;

/// Namespaces of the cluster.
const NAMESPACES: usize = 500;
/// Pods of the node.
const PODS: usize = 20;
/// Pods of other nodes that are replaced.
const ELSEWHERE: usize = 10_000;
/// Longest time for anything that concerns all pods.
const LONGEST: Duration = Duration::from_secs(60);
/// How long nothing happens. This server ends no watch, and sends no bookmarks by itself.
const REST: Duration = Duration::from_secs(5);
/// Of pods, namespaces and RuntimeClasses.
const WATCHES: u64 = 3;
/// For each of them: a watch that fails, a list in pages, another watch; and each once more.
const MAX_CONNECT_REQUESTS: u64 = 24;

kernel_test!(api_server_is_asked_for_its_own_node_only);
fn api_server_is_asked_for_its_own_node_only() -> Result<()> {
    let mut lab = Lab::new()?;
    let names = lab.bare_namespaces(PODS)?;
    let api = ApiServer::start(lab.dir())?;
    api.apply(namespace("shop", Some("enabled")))?;
    for number in 1..NAMESPACES {
        api.apply(namespace(&format!("team-{number}"), None))?;
    }
    let mut idle = Vec::new();
    for (number, netns) in names.iter().enumerate() {
        idle.push(lab.idle_process(netns, &lab.uid(number))?);
        api.apply(injected(&format!("web-{number}"), &lab.uid(number)))?;
    }
    let agent = start_agent(&lab, &api)?;
    let enrolled = |wanted: usize| {
        eventually(LONGEST, || {
            let status = lab.places().json(&["status", "-o", "json"])?;
            ensure!(status["pods"]["enrolled"] == wanted, "{}", status["pods"]);
            Ok(())
        })
    };
    enrolled(PODS)?;
    // Events of the enrollment are still being sent.
    eventually(LONGEST, || {
        let events = api.events().len();
        ensure!(events >= PODS, "{events} Events of {PODS} pods");
        Ok(())
    })?;
    let start = settled(&api)?;
    println!("start, {PODS} pods and {NAMESPACES} namespaces: {start:?}");

    thread::sleep(REST);
    let rest = api.traffic().since(start);
    println!("{REST:?} at rest: {rest:?}");
    ensure!(rest == Traffic::default(), "{rest:?} at rest");

    for number in 0..ELSEWHERE {
        let mut pod = injected(&format!("other-{number}"), &format!("other-{number}"));
        pod["spec"]["nodeName"] = json!("another-node");
        api.apply(pod)?;
        api.delete("Pod", "shop", &format!("other-{number}"))?;
    }
    thread::sleep(Duration::from_secs(2));
    let elsewhere = api.traffic().since(start);
    ensure!(
        elsewhere == Traffic::default(),
        "{elsewhere:?} for other nodes' pods"
    );
    replace_two(&lab, &api, &names, &mut idle)?;
    enrolled(PODS)?;
    let replaced = settled(&api)?.since(start);
    println!("{ELSEWHERE} pods of other nodes, and two of this one, replaced: {replaced:?}");
    // An Event for each of the two, and what the watch sends of them.
    ensure!(
        replaced.requests <= 4 && replaced.bytes < 20_000,
        "{replaced:?}"
    );

    for forgets in [false, true] {
        restart(&lab, &api, forgets)?;
    }
    drop(agent);
    Ok(())
}

/// The API server restarts, and perhaps has forgotten the versions that its clients know.
fn restart(lab: &Lab, api: &ApiServer, forgets: bool) -> Result<()> {
    let what = if forgets {
        "restart that forgets versions"
    } else {
        "restart"
    };
    let before = api.traffic();
    api.down();
    if forgets {
        api.compact();
    }
    thread::sleep(Duration::from_secs(1));
    api.up();
    eventually(LONGEST, || {
        let problems = lab.places().problems()?;
        ensure!(problems == "[]", "{problems}");
        Ok(())
    })?;
    let back = |traffic: Traffic| {
        let is_whole = if forgets { traffic.bytes > 0 } else { true };
        traffic.requests >= WATCHES && is_whole
    };
    eventually(LONGEST, || {
        let traffic = api.traffic().since(before);
        ensure!(back(traffic), "only {traffic:?} after a {what}");
        Ok(())
    })?;
    let restarted = settled(api)?.since(before);
    println!("{what} of the API server: {restarted:?}");
    ensure!(
        restarted.requests <= MAX_CONNECT_REQUESTS,
        "{restarted:?} for a {what}"
    );
    // Watches continue where they were.
    ensure!(
        forgets || restarted.bytes == 0,
        "{restarted:?} for a {what}"
    );
    Ok(())
}

/// Two pods of a rollout: the old ones go, and others come in their namespaces.
fn replace_two(
    lab: &Lab,
    api: &ApiServer,
    names: &[String],
    idle: &mut Vec<Process>,
) -> Result<()> {
    for (number, netns) in names.iter().enumerate().take(2) {
        let (old, uid) = (format!("web-{number}"), lab.uid(PODS + number));
        api.delete("Pod", "shop", &old)?;
        drop(idle.remove(0));
        lab.places().wait_pod(&format!("shop/{old}"), gone)?;
        api.apply(injected(&format!("next-{number}"), &uid))?;
        idle.push(lab.idle_process(netns, &uid)?);
    }
    Ok(())
}

/// The traffic so far, once nothing has come for a while.
fn settled(api: &ApiServer) -> Result<Traffic> {
    const QUIET: Duration = Duration::from_secs(4);
    eventually(LONGEST, || {
        let before = api.traffic();
        thread::sleep(QUIET);
        let after = api.traffic();
        ensure!(before == after, "{:?} in {QUIET:?}", after.since(before));
        Ok(after)
    })
}
