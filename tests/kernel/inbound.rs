//! The inbound table of docs/semantics.md, each row over real sockets in both families.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::{Agent, nothing_remains},
    command::Process,
    injected::with_istio_init,
    node::VIP,
    protocol::{APP, Dial, Listen, PROXY, ROOT},
};
use nix::sys::signal::Signal;
use sidetrack_common::names::LISTENER_SLOTS;

use crate::fixture::{Arrives, POD, PodFixture, SECOND, SharedFixture, at, check, original};

shared_test!(captured_ports);
fn captured_ports(fixture: &SharedFixture) -> Result<()> {
    for address in [POD, SECOND].concat() {
        // Open, closed, and the capture ports themselves.
        for port in [22, 80, 8080, 9999, 15001, 15006] {
            let to = at(address, port);
            let connected = fixture.outside.connect(&ROOT, to)?;
            let server = &connected.server;
            ensure!(connected.accepted_by == 15006, "to {to}: {connected:?}");
            ensure!(
                server.peer == connected.client.local,
                "the peer is kept: {connected:?}"
            );
            ensure!(
                original(server, to) == Ok(to),
                "original destination: {server:?}"
            );
            ensure!(connected.client.peer == to, "{connected:?}");
            ensure!(server.local == to, "no packet is rewritten: {server:?}");
        }
    }
    Ok(())
}

shared_test!(exempt_ports);
fn exempt_ports(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        for port in [15008, 15020, 15021, 15090] {
            let to = at(POD[family], port);
            let connected = fixture.outside.connect(&ROOT, to)?;
            ensure!(connected.accepted_by == port, "to {to}: {connected:?}");
            ensure!(original(&connected.server, to) == Ok(to), "{connected:?}");
        }
    }
    Ok(())
}

shared_test!(the_sidecar_reaches_the_app);
fn the_sidecar_reaches_the_app(fixture: &SharedFixture) -> Result<()> {
    // sk_lookup sees these too, and must not send them to the sidecar again.
    for (source, own) in [("127.0.0.6", POD[0]), ("::6", POD[1])] {
        let to = at(own, 80);
        let mut dial = Dial::new(&PROXY, to);
        dial.source = Some(at(source, 0));
        check(&fixture.dial(dial)?, Arrives::Untouched, source, to)?;
    }
    for own in POD {
        let to = at(own, 80);
        let result = fixture.dial(Dial::new(&APP, to))?;
        check(&result, Arrives::Untouched, own, to).context("app to itself")?;
    }
    Ok(())
}

/// Listens on an address that is not the pod's (IP_FREEBIND), which takes no privilege.
const FOREIGN: &str = r#"
import socket, sys, time
sockets = []
for number in range(int(sys.argv[1])):
    foreign = socket.socket()
    foreign.setsockopt(socket.IPPROTO_IP, 15, 1)
    foreign.bind((f"198.18.{number // 256}.{number % 256}", 15006))
    foreign.listen()
    sockets.append(foreign)
print("ready", flush=True)
time.sleep(100)
"#;

fn foreign_listeners(fixture: &PodFixture, count: &str) -> Result<Process> {
    let words = ["-c", FOREIGN, count];
    let mut command = fixture
        .pod
        .command(APP.uid, Path::new("/usr/bin/python3"), &words);
    let mut foreign = Process::start(command.stdout(Stdio::piped()))?;
    let stdout = foreign.stdout.take().context("its output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(line == "ready\n", "{line}");
    Ok(foreign)
}

kernel_test!(a_crowd_of_listeners_hides_no_sidecar);
/// An app may listen on the sidecar's port of any number of addresses that it does not have, before the pod is enrolled.
fn a_crowd_of_listeners_hides_no_sidecar() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _crowd = foreign_listeners(&fixture, "900")?;
    let sidecar = fixture.pod.actor()?;
    sidecar.listen(&PROXY, at(POD[0], 15006))?;
    fixture.enroll(&[])?;
    let connected = fixture.outside.connect(&ROOT, at(POD[0], 80))?;
    ensure!(connected.accepted_by == 15006, "{connected:?}");
    Ok(())
}

kernel_test!(only_the_sidecars_listener_accepts);
/// Processes listen on loopback only, which nothing outside reaches with iptables, and on an address that the pod does not
/// have. They neither stand in for the sidecar nor accept some of its connections, found before
/// enrollment or after.
fn only_the_sidecars_listener_accepts() -> Result<()> {
    let fixture = PodFixture::new()?;
    let to = at(POD[0], 80);
    let inbound = || fixture.outside.dial(Dial::new(&ROOT, to));
    let earlier = fixture.pod.actor()?;
    earlier.listen(&PROXY, at("127.0.0.1", 15006))?;
    fixture.enroll(&[])?;
    let later = fixture.pod.actor()?;
    later.listen(&PROXY, at("127.0.0.2", 15006))?;
    // Nor one on an address that is not the pod's.
    let _foreign = foreign_listeners(&fixture, "1")?;
    let outcome = inbound()?;
    ensure!(outcome == Err(libc::ECONNREFUSED), "{outcome:?}");
    let sidecar = fixture.pod.actor()?;
    let listener = sidecar.listen(&PROXY, at(POD[0], 15006))?;
    for _ in 0..20 {
        let connected = inbound()?;
        ensure!(
            connected
                .as_ref()
                .is_ok_and(|connected| connected.accepted_by == 15006),
            "{connected:?}"
        );
    }
    // The others still listen, so all of these were the sidecar's.
    sidecar.close(listener, 0)?;
    let outcome = inbound()?;
    ensure!(outcome == Err(libc::ECONNREFUSED), "{outcome:?}");
    Ok(())
}

kernel_test!(only_loopback_takes_outbound_connections);
/// iptables sends them to 127.0.0.1. Processes that listen at the outbound port of other addresses, of loopback or not,
/// accept none, neither without the sidecar nor beside it.
fn only_loopback_takes_outbound_connections() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let early = fixture.pod.actor()?;
    early.listen(&APP, at("127.0.0.2", 15001))?;
    fixture.enroll(&[])?;
    let others = fixture.pod.actor()?;
    for address in ["127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", POD[0]] {
        others.listen(&APP, at(address, 15001))?;
    }
    let is_refused = |fixture: &PodFixture| -> Result<()> {
        let outcome = fixture.dial(at(VIP, 80))?;
        ensure!(outcome == Err(libc::ECONNREFUSED), "{outcome:?}");
        Ok(())
    };
    is_refused(&fixture)?;
    let sidecar = fixture.pod.actor()?;
    let listener = sidecar.listen(&PROXY, at("127.0.0.1", 15001))?;
    others.listen(&APP, at("127.0.0.7", 15001))?;
    for _ in 0..20 {
        ensure!(fixture.accepted_by()? == 15001);
    }
    // An agent that finds all of them running.
    fixture.lab.remove_manifest("app")?;
    nothing_remains(&fixture.agent.places)?;
    fixture.agent.end(Signal::SIGTERM)?;
    fixture.agent = Agent::start(&fixture.agent.places)?;
    fixture.enroll(&[])?;
    ensure!(fixture.accepted_by()? == 15001);
    sidecar.close(listener, 0)?;
    is_refused(&fixture)
}

kernel_test!(listeners_at_earlier_ports_are_forgotten);
/// Sockets at the ports of a policy stay open while the pod's ports change.
fn listeners_at_earlier_ports_are_forgotten() -> Result<()> {
    let fixture = PodFixture::new()?;
    let sidecar = fixture.pod.actor()?;
    let ports = [15001, 15006, 16001, 16006];
    for port in ports {
        sidecar.listen(&PROXY, at("0.0.0.0", port))?;
    }
    let enroll = |arguments: &[&str]| {
        let manifest = with_istio_init(&fixture.pod, arguments, &[]);
        fixture.lab.enroll_manifest("app", &manifest)
    };
    let listeners = || -> Result<Vec<u16>> {
        let keys = fixture.agent.places.maps()?.listeners.keys()?;
        let mut ports: Vec<u16> = keys.iter().map(|key| key.port).collect();
        ports.sort_unstable();
        Ok(ports)
    };
    enroll(&[])?;
    for (arguments, own) in [
        (&["-p", "16001"][..], [15006, 16001]),
        (&["-z", "16006"], [15001, 16006]),
        (&[], [15001, 15006]),
    ] {
        enroll(arguments)?;
        fixture.wait("its ports have listeners", || Ok(listeners()? == own))?;
    }
    Ok(())
}

kernel_test!(ipv6_only_listeners_take_no_slot_of_ipv4);
/// As many workers as there are slots listen on all IPv6 addresses alone, before or after the agent starts; IPv4
/// connections still reach the sidecar.
fn ipv6_only_listeners_take_no_slot_of_ipv4() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let sidecar = fixture.pod.actor()?;
    let group = |address: &str, sockets: usize| Listen {
        address: at(address, 15006),
        owner: PROXY,
        sockets,
        v6_only: true,
        transparent: false,
        mptcp: false,
    };
    sidecar.listen_group(group("::", LISTENER_SLOTS as usize))?;
    sidecar.listen_group(group("0.0.0.0", 2))?;
    let both_arrive = |fixture: &PodFixture| -> Result<()> {
        for address in POD {
            let arrived = fixture.outside.dial(Dial::new(&ROOT, at(address, 80)))?;
            ensure!(
                arrived.as_ref().is_ok_and(|it| it.accepted_by == 15006),
                "{address}: {arrived:?}"
            );
        }
        Ok(())
    };
    both_arrive(&fixture)?;
    // An agent that finds all of them running.
    fixture.lab.remove_manifest("app")?;
    nothing_remains(&fixture.agent.places)?;
    fixture.agent.end(Signal::SIGTERM)?;
    fixture.agent = Agent::start(&fixture.agent.places)?;
    fixture.enroll(&[])?;
    both_arrive(&fixture)
}

kernel_test!(listeners_on_other_addresses_take_no_slot);
/// An app listens on the inbound port at many IPv6 addresses, before or after the agent starts; IPv4 connections still
/// reach the sidecar.
fn listeners_on_other_addresses_take_no_slot() -> Result<()> {
    const MORE_THAN_SLOTS: u16 = LISTENER_SLOTS as u16 + 8;
    let mut fixture = PodFixture::new()?;
    let app = fixture.pod.actor()?;
    for number in 0..MORE_THAN_SLOTS {
        let address = format!("fd77::a:{number:x}");
        let line = format!("address add {address}/128 dev lo nodad");
        fixture.pod.ip(&line)?;
    }
    fixture.enroll(&[])?;
    for number in 0..MORE_THAN_SLOTS {
        app.listen(&APP, at(&format!("fd77::a:{number:x}"), 15006))?;
    }
    let sidecar = fixture.pod.actor()?;
    sidecar.listen(&PROXY, at("0.0.0.0", 15006))?;
    let reaches_sidecar = |fixture: &PodFixture| -> Result<()> {
        let arrived = fixture.outside.dial(Dial::new(&ROOT, at(POD[0], 80)))?;
        ensure!(
            arrived.as_ref().is_ok_and(|it| it.accepted_by == 15006),
            "{arrived:?}"
        );
        Ok(())
    };
    reaches_sidecar(&fixture)?;
    // An agent that finds all of them running.
    fixture.lab.remove_manifest("app")?;
    nothing_remains(&fixture.agent.places)?;
    fixture.agent.end(Signal::SIGTERM)?;
    fixture.agent = Agent::start(&fixture.agent.places)?;
    fixture.enroll(&[])?;
    reaches_sidecar(&fixture)
}
