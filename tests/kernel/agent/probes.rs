//! Kubelet's probes ask on the node's loopback.

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, Extra},
    command::run,
    network::{Lab, PodNet},
};
use nix::sys::signal::Signal;

const PORT: &str = "9447";

/// The status of an answer to somebody in a network namespace; 000 if there is none.
fn status(from: &PodNet, path: &str) -> String {
    let url = format!("http://127.0.0.1:{PORT}{path}");
    let netns = from.path();
    let asked = format!("nsenter --net={netns} curl -s -m 3 -o /dev/null -w %{{http_code}} {url}");
    run(&asked).unwrap_or_else(|_| "000".to_owned())
}

kernel_test!(probes_are_answered_on_the_nodes_loopback);
/// Not to pods, also while the agent hangs; and the port is one agent's.
fn probes_are_answered_on_the_nodes_loopback() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let node = lab.outside();
    let path = node.path();
    let arguments = ["--probe-port", PORT, "--node-netns", &path];
    let mut agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
    for path in ["/healthz", "/readyz"] {
        ensure!(status(&node, path) == "200", "{path}");
        ensure!(status(&pod, path) == "000", "{path}");
    }
    ensure!(status(&node, "/metrics") == "404");

    let other = Lab::new()?;
    let second = Agent::start_with(other.places(), &Extra::arguments(&arguments));
    let problem = format!(
        "{:#}",
        second.err().map(|it| format!("{it:#}")).unwrap_or_default()
    );
    for words in ["127.0.0.1:9447", "another agent", "--probe-port", "in use"] {
        ensure!(problem.contains(words), "{words:?}: {problem}");
    }
    ensure!(!other.places().bpffs.join("sidetrack").exists());

    // Its successor has the port at once.
    agent.end(Signal::SIGKILL)?;
    ensure!(status(&node, "/healthz") == "000");
    let _agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
    ensure!(status(&node, "/readyz") == "200");
    Ok(())
}
