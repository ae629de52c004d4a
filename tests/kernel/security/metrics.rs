//! What `/metrics` exposes.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, Extra},
    attack::{ATTACKER, Attack, silent},
    command::run,
    network::{Lab, manifest},
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
};

use super::descriptors;
use crate::fixture::at;

kernel_test!(metrics_expose_nothing_private);
fn metrics_expose_nothing_private() -> Result<()> {
    const IDLE: usize = 150;
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("zebra", 2)?;
    let text = manifest(
        "zebra",
        &pod,
        &[("traffic.sidecar.istio.io/excludeOutboundPorts", "47113")],
    );
    lab.write_manifest("zebra", &text)?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--metrics-addr", &address]),
    )?;
    agent.places.wait_enrolled("test/zebra")?;
    let _sidecar = sidecar::start(&pod, &[])?;
    let dialed = pod.actor()?.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(dialed.is_ok(), "{dialed:?}");
    // Counters may be a second old, numbers of rows five.
    thread::sleep(Duration::from_millis(5100));
    // Silent clients do not keep the port busy for other clients.
    let before = descriptors(&agent)?;
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|_| TcpStream::connect(&address))
        .collect::<std::io::Result<_>>()?;
    thread::sleep(Duration::from_millis(200));
    ensure!(
        descriptors(&agent)? <= before + 64 + 16 + 6,
        "{}",
        descriptors(&agent)?
    );
    let mut all = String::new();
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/",
        "/v1/pods",
        "/v1/status",
    ] {
        all += &run(&format!("curl -s -m 20 http://{address}{path}"))?;
    }
    drop(idle);
    ensure!(
        all.contains("sidetrack_connections_total{rule=\"out-all\"} 1"),
        "{all}"
    );
    ensure!(
        all.contains("sidetrack_map_rows{map=\"POD_BY_NETNS\"} 1"),
        "{all}"
    );
    ensure!(
        all.contains("sidetrack_map_capacity{map=\"HANDSHAKES\"} 27648"),
        "{all}"
    );
    let row = agent.places.pod("test/zebra")?.context("the pod")?;
    let cookie = row["netns"]["cookie"].to_string();
    let inode = row["netns"]["inode"].to_string();
    for private in [
        "zebra", "uid-of", "test/", "10.77.", "fd77", VIP, "47113", "netns/", &inode,
    ] {
        ensure!(!all.contains(private), "{private} is shown:\n{all}");
    }
    let values = all.lines().filter_map(|line| line.rsplit(' ').next());
    ensure!(cookie.len() < 4 || !values.into_iter().any(|value| value == cookie));
    Ok(())
}

kernel_test!(silent_clients_of_the_metrics_port_delay_no_one);
/// Kubelet kills an agent of which three probes in a row fail.
fn silent_clients_of_the_metrics_port_delay_no_one() -> Result<()> {
    beside(|address| silent(address, Some(ATTACKER), 400))
}

kernel_test!(silent_clients_of_the_scrapers_own_address_end_no_scrape);
/// Many clients have one address behind a node that translates theirs.
fn silent_clients_of_the_scrapers_own_address_end_no_scrape() -> Result<()> {
    beside(|address| silent(address, None, 70))
}

fn beside(attack: impl FnOnce(SocketAddr) -> Attack) -> Result<()> {
    /// The longest answer.
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
    let lab = Lab::new()?;
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let agent = Agent::start_with(
        lab.places(),
        &Extra::arguments(&["--metrics-addr", &address.to_string()]),
    )?;
    let descriptors_before = descriptors(&agent)?;
    let attack = attack(address);
    // By now those who came first have the places, and the others wait for them.
    thread::sleep(Duration::from_millis(300));
    ensure!(attack.effects() >= 64, "{} clients came", attack.effects());
    for round in 0..10 {
        for what in ["live", "ready"] {
            let start = Instant::now();
            let probed = agent.places.output(&["probe", what])?;
            ensure!(probed.status.success(), "{probed:?}");
            let took = start.elapsed();
            ensure!(
                took < ANSWER_TIMEOUT,
                "round {round}: probe {what} took {took:?}"
            );
        }
        for path in ["/healthz", "/readyz", "/metrics"] {
            let start = Instant::now();
            let page = run(&format!("curl -sf -m 5 http://{address}{path}"))?;
            ensure!(!page.is_empty(), "{path}");
            let took = start.elapsed();
            ensure!(took < ANSWER_TIMEOUT, "round {round}: {path} took {took:?}");
        }
    }
    // The places, those that wait for one, and those that are being dropped.
    let most = descriptors(&agent)?;
    ensure!(
        most < descriptors_before + 64 + 64 + 40,
        "{descriptors_before} became {most}"
    );
    drop(attack);
    Ok(())
}
