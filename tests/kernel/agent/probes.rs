//! Kubelet's probes ask on the node's loopback.

use std::net::TcpListener;

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
/// Not to pods; and the port is one agent's.
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

kernel_test!(the_nodes_own_namespace_has_the_port);
/// Which no pod may name as its own.
fn the_nodes_own_namespace_has_the_port() -> Result<()> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let lab = Lab::new()?;
    let text = port.to_string();
    let arguments = ["--probe-port", &text, "--node-netns", "/proc/self/ns/net"];
    let _agent = Agent::start_with(lab.places(), &Extra::arguments(&arguments))?;
    for path in ["healthz", "readyz"] {
        run(&format!("curl -sf -m 3 http://127.0.0.1:{port}/{path}"))?;
    }
    Ok(())
}
