//! Which pod a CNI request is about.

use std::{thread, time::Duration};

use anyhow::{Result, anyhow, ensure};
use lab::{
    injected::{LABEL, injected},
    node::{Node, VIP},
    protocol::{APP, Dial},
    runtime::Added,
};
use serde_json::json;

use super::collect;
use crate::fixture::at;

kernel_test!(an_unknown_namespace);
/// A pod of a namespace that the agent has not seen yet: it may be labeled either way.
fn an_unknown_namespace() -> Result<()> {
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
        let answer = api.apply(lab::injected::namespace("new", Some("enabled")));
        answer.and(adding.join().expect("no panic"))
    });
    let Added::Ready(sandbox) = added? else {
        return Err(anyhow!("it does not start\n{}", node.places().log()));
    };
    let (actor, accepted) = node.first_connection(&sandbox, &uid)?;
    ensure!(accepted == 15001, "{accepted}");
    drop(actor);
    // A pod with a label of its own needs no label of its namespace.
    let uid = node.lab.uid(2);
    let mut pod = injected("own", &uid);
    pod["metadata"]["namespace"] = json!("newer");
    pod["metadata"]["labels"][LABEL] = json!("disabled");
    node.api.apply(pod)?;
    node.ready("newer/own", &uid)?;
    node.end()
}

kernel_test!(another_pod_of_the_same_name);
/// Deleted by force and created anew under its name: as long as the old one runs it is intercepted.
fn another_pod_of_the_same_name() -> Result<()> {
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

kernel_test!(a_recreated_sandbox);
fn a_recreated_sandbox() -> Result<()> {
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
