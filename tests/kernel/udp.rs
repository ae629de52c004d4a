//! UDP is never redirected or evaluated, in either direction. Connected sockets are counted.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    network::GATEWAY,
    protocol::{APP, PROXY, ROOT},
    sidecar,
    udp::{SendUdp, UdpAnswer},
};

use serde_json::Value;

use crate::fixture::{POD, PodFixture, VIP, at, ip};

/// A port that the sidecar has nothing to do with, and those that it captures to.
const PORTS: [u16; 3] = [53, 15001, 15006];
/// Nothing listens there.
const CLOSED: u16 = 9999;
/// The outside's addresses toward the pod.
const OUTSIDE: [&str; 2] = [GATEWAY, "fd77::fe"];
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// A pod whose sidecar listens for TCP on the capture ports, and which answers datagrams on all ports.
fn enrolled_pod() -> Result<(PodFixture, Actor)> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    for family in [0, 1] {
        for port in PORTS {
            fixture.outside.answer_udp(&ROOT, at(VIP[family], port))?;
            sidecar.answer_udp(&PROXY, at(POD[family], port))?;
            sidecar.answer_udp(&APP, at(LOOPBACK[family], port))?;
        }
    }
    fixture.enroll(&[])?;
    Ok((fixture, sidecar))
}

/// So many sockets are counted as UDP, and nothing else before a TCP connection is made.
fn is_counted(fixture: &PodFixture, sockets: u64) -> Result<()> {
    let connections = |fixture: &PodFixture| -> Result<Value> {
        let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
        Ok(pod["connections"].clone())
    };
    let sum = |counted: &Value| -> u64 {
        let fields = counted.as_object().into_iter().flat_map(|it| it.values());
        fields.filter_map(Value::as_u64).sum()
    };
    let counted = connections(fixture)?;
    ensure!(
        counted["udp"] == sockets && sum(&counted) == sockets,
        "{counted}"
    );
    ensure!(fixture.accepted_by()? == 15001);
    let counted = connections(fixture)?;
    ensure!(
        sum(&counted) == sockets + 1,
        "a redirected connection is counted: {counted}"
    );
    let status = fixture.agent.places.json(&["status", "-o", "json"])?;
    let notes = status["notes"].to_string();
    let text = format!("connected {sockets} UDP sockets, which are not intercepted");
    ensure!(notes.contains(&text) == (sockets > 0), "{notes}");
    Ok(())
}

/// Sends to an address and checks who answers and whom the answering end sees.
fn exchanges(from: &Actor, to: SocketAddr, seen_as: &str) -> Result<()> {
    for sender in [&APP, &PROXY, &ROOT] {
        for connected in [true, false] {
            let case = || format!("uid {} to {to}, connected: {connected}", sender.uid);
            let answer = from.send_udp(SendUdp {
                sender: sender.clone(),
                destination: to,
                source: None,
                connected,
            })?;
            let answer = answer
                .map_err(|errno| anyhow!("errno {errno}"))
                .with_context(case)?;
            let wanted = UdpAnswer {
                answered_by: to,
                sender: SocketAddr::new(ip(seen_as), answer.sender.port()),
                came_from: to,
                peer: connected.then_some(to),
            };
            ensure!(answer == wanted, "{}: {answer:?}", case());
        }
    }
    Ok(())
}

kernel_test!(outbound_datagrams_are_untouched);
fn outbound_datagrams_are_untouched() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod()?;
    for family in [0, 1] {
        for port in PORTS {
            for (to, seen_as) in [
                (VIP[family], POD[family]),
                (POD[family], POD[family]),
                (LOOPBACK[family], LOOPBACK[family]),
            ] {
                exchanges(&fixture.client, at(to, port), seen_as)?;
            }
        }
        refused(&fixture.client, at(POD[family], CLOSED))?;
    }
    // For both families: by three users to three ports of three hosts, and to the closed one.
    is_counted(&fixture, 2 * (3 * 3 * 3 + 2))
}

kernel_test!(inbound_datagrams_are_untouched);
fn inbound_datagrams_are_untouched() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod()?;
    for family in [0, 1] {
        for port in PORTS {
            exchanges(&fixture.outside, at(POD[family], port), OUTSIDE[family])?;
        }
        refused(&fixture.outside, at(POD[family], CLOSED))?;
    }
    is_counted(&fixture, 0)
}

/// The kernel answers that the port is closed.
fn refused(from: &Actor, to: SocketAddr) -> Result<()> {
    for sender in [APP, PROXY] {
        let answer = from.send_udp(SendUdp {
            sender,
            destination: to,
            source: None,
            connected: true,
        })?;
        ensure!(answer == Err(libc::ECONNREFUSED), "to {to}: {answer:?}");
    }
    Ok(())
}
