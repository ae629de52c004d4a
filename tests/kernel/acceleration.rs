//! Accelerated connections carry what TCP would carry, in its order, and make a sender wait as TCP does.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{command::Process, network::manifest};
use nix::sys::signal::Signal;
use serde_json::Value;
use sidetrack_common::names;

use crate::fixture::{POD, PodFixture, VIP};

const PEERS: &str = include_str!("acceleration/peers.py");
const PYTHON: &str = "/usr/bin/python3";
const ACCELERATE: (&str, &str) = ("sidetrack.dev/accelerate", "true");
const APP: u32 = 1000;
const PROXY: u32 = 1337;

/// Something that listens as the proxy, at an address and a port.
fn serve(fixture: &PodFixture, ip: &str, port: u16, user: u32) -> Result<Process> {
    let arguments = ["-c", PEERS, "serve", ip, &port.to_string()];
    let mut command = fixture.pod.command(user, Path::new(PYTHON), &arguments);
    command.stdout(Stdio::piped());
    let mut server = Process::start(&mut command)?;
    let stdout = server.stdout.take().context("its output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line.trim() == "listening", "{line}");
    Ok(server)
}

/// A client's scenario to its end; what it printed.
fn dial(fixture: &PodFixture, user: u32, scenario: &str, to: (&str, u16)) -> Result<String> {
    // The sidecar's source toward the application.
    let source = if user == PROXY {
        "127.0.0.6"
    } else {
        "0.0.0.0"
    };
    let arguments = [
        "-c",
        PEERS,
        "dial",
        scenario,
        source,
        to.0,
        &to.1.to_string(),
    ];
    let output = fixture
        .pod
        .command(user, Path::new(PYTHON), &arguments)
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(said.ends_with("ok\n"), "{scenario}: {said}{errors}");
    Ok(said)
}

/// Whether the maps of acceleration are there.
fn is_loaded(fixture: &PodFixture) -> bool {
    [names::ACCELERATED, names::FLOWS]
        .iter()
        .any(|map| is_pinned(fixture, map))
}

fn is_pinned(fixture: &PodFixture, map: &str) -> bool {
    let maps = fixture.agent.places.pins().join("maps");
    maps.join(map).exists()
}

/// The ends of connections that are known.
fn flows(fixture: &PodFixture) -> Result<Vec<Value>> {
    let is_pinned = || is_pinned(fixture, names::FLOWS);
    if !is_pinned() {
        return Ok(Vec::new());
    }
    match fixture.agent.places.map(names::FLOWS) {
        // It was unloaded while it was read.
        Err(_) if !is_pinned() => Ok(Vec::new()),
        rows => rows,
    }
}

/// Bytes that each end of the known connections has sent past TCP.
fn sent(fixture: &PodFixture) -> Result<BTreeMap<String, u64>> {
    let rows = flows(fixture)?;
    let sent = rows.iter().map(|row| {
        let sent = &row["formatted"]["value"]["sent"];
        (row["key"].to_string(), sent.as_u64().unwrap_or_default())
    });
    Ok(sent.collect())
}

/// Runs a scenario; whether anything of it went past TCP. Its connection may have the port of an earlier one, and
/// then it has that one's row, which begins at 0 again.
fn is_accelerated(
    fixture: &PodFixture,
    user: u32,
    scenario: &str,
    to: (&str, u16),
) -> Result<bool> {
    let before = sent(fixture)?;
    dial(fixture, user, scenario, to)?;
    let after = sent(fixture)?;
    let mut after = after.iter().filter(|(_, sent)| **sent > 0);
    Ok(after.any(|(end, sent)| before.get(end) != Some(sent)))
}

/// An accelerated pod.
fn accelerated() -> Result<PodFixture> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[ACCELERATE])?;
    let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
    ensure!(pod["notes"].to_string().contains("experimental"), "{pod}");
    Ok(fixture)
}

const SCENARIOS: [&str; 9] = [
    "exchange",
    "alternate",
    "stopped_reader",
    "half_close",
    "speaks_first",
    "peek",
    "reset",
    "sendfile",
    "unread",
];

fn all_scenarios(fixture: &PodFixture, user: u32, to: (&str, u16)) -> Result<()> {
    for scenario in SCENARIOS {
        let accelerated = is_accelerated(fixture, user, scenario, to)?;
        ensure!(accelerated, "{scenario} was not accelerated");
    }
    Ok(())
}

kernel_test!(outbound, needs QUEUE_ACCOUNTING);
fn outbound() -> Result<()> {
    let fixture = accelerated()?;
    let _sidecar = serve(&fixture, "0.0.0.0", 15001, PROXY)?;
    all_scenarios(&fixture, APP, (VIP[0], 80))
}

kernel_test!(inbound, needs QUEUE_ACCOUNTING);
/// From the sidecar to the application.
fn inbound() -> Result<()> {
    let fixture = accelerated()?;
    let _app = serve(&fixture, "0.0.0.0", 8080, APP)?;
    all_scenarios(&fixture, PROXY, (POD[0], 8080))
}

kernel_test!(switched_on_and_off, needs QUEUE_ACCOUNTING);
/// By the annotation, for new connections, and for no other pod.
fn switched_on_and_off() -> Result<()> {
    let plain = PodFixture::new()?;
    ensure!(!is_loaded(&plain), "no pod is accelerated");
    drop(plain);
    let mut fixture = accelerated()?;
    ensure!(is_loaded(&fixture));
    let _sidecar = serve(&fixture, "0.0.0.0", 15001, PROXY)?;
    let to = (VIP[0], 80);
    let counts = |fixture: &PodFixture| is_accelerated(fixture, APP, "peek", to);
    ensure!(counts(&fixture)?);
    let until = |fixture: &PodFixture, wanted: bool| -> Result<()> {
        let is_so = || Ok(counts(fixture)? == wanted);
        lab::wait::until(Duration::from_secs(10), &format!("not {wanted}"), is_so).map(drop)
    };
    fixture.lab.write_pod("app", &fixture.pod, &[])?;
    until(&fixture, false)?;
    // Without an accelerated pod and its connections there is nothing of it in the kernel.
    lab::wait::until(Duration::from_secs(20), "the programs stay", || {
        Ok(!is_loaded(&fixture))
    })?;
    fixture.lab.write_pod("app", &fixture.pod, &[ACCELERATE])?;
    until(&fixture, true)?;
    // The next agent takes it over, and one that ends leaves it.
    fixture.agent.end(Signal::SIGKILL)?;
    ensure!(counts(&fixture)?);
    fixture.agent = lab::agent::Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    ensure!(counts(&fixture)?);
    // Without a cgroup of its own a pod is intercepted, and says why it is not accelerated.
    let text = manifest("app", &fixture.pod, &[ACCELERATE])
        .edited(|object| object["metadata"]["uid"] = "no-uid".into());
    fixture.lab.release("app")?;
    fixture.lab.enroll_manifest("app", &text)?;
    let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
    let notes = pod["notes"].to_string();
    ensure!(
        notes.contains("not accelerated") && notes.contains("UID"),
        "{notes}"
    );
    ensure!(!counts(&fixture)?);
    Ok(())
}

kernel_test!(open_connections_outlive_agents, needs QUEUE_ACCOUNTING);
/// Bytes flow while agents are replaced, and while the pod leaves.
fn open_connections_outlive_agents() -> Result<()> {
    let mut fixture = accelerated()?;
    let _sidecar = serve(&fixture, "0.0.0.0", 15001, PROXY)?;
    let (first, second) = thread::scope(|scope| -> Result<_> {
        let shared = &fixture;
        let run = move || dial(shared, APP, "exchange", (VIP[0], 80));
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        // Both directions of both.
        let flowing = |row: &Value| row["formatted"]["value"]["sent"].as_u64() > Some(1000);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let rows = flows(shared)?;
            if rows.iter().filter(|row| flowing(row)).count() >= 4 {
                break;
            }
            ensure!(Instant::now() < deadline, "{rows:?}");
        }
        shared.lab.remove_manifest("app")?;
        let mut ended = clients
            .into_iter()
            .map(|client| client.join().expect("no panic"));
        Ok((ended.next(), ended.next()))
    })?;
    first.context("a client")??;
    second.context("a client")??;
    fixture.agent.end(Signal::SIGTERM)?;
    let cleanup = fixture.agent.places.output(&["cleanup"])?;
    ensure!(cleanup.status.success(), "{cleanup:?}");
    Ok(())
}
