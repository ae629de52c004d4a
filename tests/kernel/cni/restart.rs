//! The agent goes, comes back or is replaced while pods start.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra},
    injected::injected,
    node::Node,
    runtime::Added,
};
use nix::sys::signal::Signal;

use super::status;

kernel_test!(the_agent_goes_and_comes);
fn the_agent_goes_and_comes() -> Result<()> {
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
    // No agent answers within two seconds.
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

kernel_test!(the_agent_is_replaced_meanwhile);
/// An ADD waits while the agent it has asked ends and another comes.
fn the_agent_is_replaced_meanwhile() -> Result<()> {
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
            .and_then(|_| Agent::start_with(&places, &Extra::api(api)))
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
