//! Pods start without the plugin.

use std::time::Duration;

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    injected::injected,
    node::Node,
};

kernel_test!(without_the_plugin);
/// Without the plugin: from a pod's first process to its enrollment.
fn without_the_plugin() -> Result<()> {
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
