//! Attacks by processes, sockets and clients.

use std::{
    io::Write as _, net::SocketAddr, os::unix::net::UnixStream, path::PathBuf, process::Stdio,
    time::Duration,
};

use anyhow::{Result, ensure};
use lab::{
    attack::{self, ATTACKER, Attack},
    command::{Process, run},
    node::VIP,
    product::CNI_REQUESTS_PATH,
    protocol::{APP, Connected, Dial},
    sidecar,
    wait::eventually,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    agent::Held,
    objects::EXCLUDED_PORTS,
    world::{GREEDY, HEALTHY, World},
};

/// A policy whose connections have rows of handshakes: their targets do not name the destination.
const WITH_HANDSHAKE_ROWS: (&str, &str) = (
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "127.0.0.0/8,10.0.0.0/8",
);

fn to(port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(VIP.parse()?, port))
}

pub fn processes(world: &mut World) -> Result<Held> {
    let (_, actor) = world.active_pod(GREEDY, "crowd", 20, |_| {})?;
    actor.sleepers(15_000)?;
    world.remember(GREEDY, "crowd");
    Ok(Box::new(actor))
}

pub fn silent_metrics(world: &mut World) -> Result<Held> {
    reaching(attack::silent(world.metrics, Some(ATTACKER), 600))
}

pub fn busy_metrics(world: &mut World) -> Result<Held> {
    let address = world.metrics;
    reaching(Attack::start(64, move |effects| async move {
        let mut stream = attack::dial(address, Some(ATTACKER)).await?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        if answer.starts_with(b"HTTP/1.1 200") {
            effects.count();
        }
        Ok(())
    }))
}

/// One that has had an effect by now.
fn reaching(attack: Attack) -> Result<Held> {
    eventually(Duration::from_secs(5), || {
        ensure!(attack.effects() > 0, "the attack reaches nothing");
        Ok(())
    })?;
    Ok(Box::new(attack))
}

/// Each request waits until its pod is known, and so stays open.
pub fn sandboxes(world: &mut World) -> Result<Held> {
    let socket: PathBuf = world.places().socket.clone();
    let mut open = Vec::new();
    for number in 0..1000 {
        let body = json!({
            "namespace": GREEDY, "name": format!("unknown-{number}"), "uid": world.lab.uid(5000 + number),
            "container": format!("{number:064x}"), "netns": "/proc/self/ns/net", "timeout_ms": 10_000,
        })
        .to_string();
        let mut stream = UnixStream::connect(&socket)?;
        let head = format!(
            "POST {CNI_REQUESTS_PATH} HTTP/1.1\r\nHost: agent\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // Those past the agent's places are closed, or wait in the socket's queue.
        if stream.write_all((head + &body).as_bytes()).is_ok() {
            open.push(stream);
        }
    }
    ensure!(open.len() > 500, "{} requests are open", open.len());
    Ok(Box::new(open))
}

/// A counter for each position of a list.
pub fn counters(world: &mut World) -> Result<Held> {
    let list: Vec<u16> = (10_000..20_000).collect();
    let text: Vec<String> = list.iter().map(ToString::to_string).collect();
    let (net, actor) = world.active_pod(GREEDY, "counted", 21, |pod| {
        pod["metadata"]["annotations"] = json!({EXCLUDED_PORTS: text.join(",")});
    })?;
    world.remember(GREEDY, "counted");
    world.places().wait_enrolled("greedy/counted")?;
    let sidecar = sidecar::start(&net, &[])?;
    let dials = list.iter().map(|port| Ok(Dial::new(&APP, to(*port)?)));
    let dialed = actor.dial_all(dials.collect::<Result<_>>()?)?;
    // Nothing listens on the excluded ports.
    refused(&dialed)?;
    Ok(Box::new((actor, sidecar)))
}

/// No SYN reaches the sidecar's port.
pub fn handshakes(world: &mut World) -> Result<Held> {
    let (name, value) = WITH_HANDSHAKE_ROWS;
    let (net, actor) = world.active_pod(GREEDY, "flood", 22, |pod| {
        pod["metadata"]["annotations"] = json!({name: value});
    })?;
    world.remember(GREEDY, "flood");
    let sidecar = sidecar::start(&net, &[])?;
    world.places().wait_enrolled("greedy/flood")?;
    run(&format!(
        "ip netns exec {} iptables -A INPUT -p tcp --syn --dport 15001 -j DROP",
        net.netns
    ))?;
    let flooded = actor.flood(to(80)?, 12_000)?;
    ensure!(
        flooded.pending + flooded.refused == 12_000 && flooded.pending > 1000,
        "{flooded:?}"
    );
    Ok(Box::new((actor, sidecar)))
}

/// Nothing listens on the capture port.
pub fn refusals(world: &mut World) -> Result<Held> {
    refuse(world, "refused", 23)
}

fn refuse(world: &mut World, name: &str, number: u8) -> Result<Held> {
    let (_, actor) = world.active_pod(GREEDY, name, number, |_| {})?;
    world.remember(GREEDY, name);
    world.places().wait_enrolled(&format!("{GREEDY}/{name}"))?;
    for _ in 0..6 {
        let dials = (0..10_000).map(|_| Ok(Dial::new(&APP, to(80)?)));
        refused(&actor.dial_all(dials.collect::<Result<_>>()?)?)?;
    }
    Ok(Box::new(actor))
}

/// Whether all were.
fn refused(dialed: &[Result<Connected, i32>]) -> Result<()> {
    let other = dialed
        .iter()
        .find(|it| !matches!(it, Err(libc::ECONNREFUSED)));
    ensure!(other.is_none(), "one was not refused: {other:?}");
    Ok(())
}

/// Their output fills its pipes.
pub fn unread_traces(world: &mut World) -> Result<Held> {
    let mut traces = Vec::new();
    for _ in 0..8 {
        let mut command = world.places().command(&["trace"])?;
        let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
        traces.push(Process::start(command)?);
    }
    Ok(Box::new((traces, refuse(world, "traced", 24)?)))
}

/// To the port of an app that its sidecar listens for.
pub fn neighbor(world: &mut World) -> Result<Held> {
    let neighbor = world.lab.outside().actor()?;
    let flooded = neighbor.flood(SocketAddr::new(HEALTHY.parse()?, 80), 12_000)?;
    ensure!(flooded.pending > 1000, "{flooded:?}");
    Ok(Box::new(neighbor))
}
