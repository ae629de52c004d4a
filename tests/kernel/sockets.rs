//! Sockets that are not used in the plainest way.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    command::{run, run_words},
    protocol::{APP, Dial, Listen, Manner, PROXY},
    sidecar,
    wait::eventually,
};

use sidetrack_common::target::Target;

use crate::fixture::{Arrives, POD, PodFixture, SharedFixture, VIP, at, check};

fn in_manner(fixture: &SharedFixture, manner: Manner) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.manner = manner;
        let result = fixture.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    Ok(())
}

shared_test!(non_blocking_connect);
fn non_blocking_connect(fixture: &SharedFixture) -> Result<()> {
    in_manner(fixture, Manner::NonBlocking)
}

shared_test!(fast_open);
fn fast_open(fixture: &SharedFixture) -> Result<()> {
    in_manner(fixture, Manner::FastOpen)
}

shared_test!(mptcp, needs MPTCP_PARENT);
/// The connection is made by a subflow, a TCP socket of the kernel's own behind the application's.
fn mptcp(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.manner = Manner::Mptcp;
        let connected = fixture
            .dial(dial)?
            .map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(connected.client.peer == to, "{connected:?}");
        ensure!(
            crate::fixture::original(&connected.server, to) == Ok(to),
            "{connected:?}"
        );
        ensure!(
            connected.server.peer.ip() == crate::fixture::ip(POD[family]),
            "{connected:?}"
        );
    }
    // Its owner is the application socket's.
    let mut dial = Dial::new(&PROXY, at(POD[0], 80));
    dial.manner = Manner::Mptcp;
    let connected = fixture
        .dial(dial)?
        .map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15006, "{connected:?}");
    Ok(())
}

shared_test!(second_connect_after_a_failure);
/// The source address a failed redirect gave the socket does not show in its next connection.
fn second_connect_after_a_failure(fixture: &SharedFixture) -> Result<()> {
    for (first, second, arrives, seen_as) in [
        // Refused on the pod itself, then redirected.
        (
            at("127.0.0.1", 9),
            at(VIP[0], 80),
            Arrives::Sidecar(15001),
            POD[0],
        ),
        (
            at("::1", 9),
            at(VIP[1], 80),
            Arrives::Sidecar(15001),
            POD[1],
        ),
        // No route, then redirected.
        (
            at("10.202.0.1", 80),
            at(VIP[0], 80),
            Arrives::Sidecar(15001),
            POD[0],
        ),
    ] {
        let mut dial = Dial::new(&APP, second);
        dial.first = Some(first);
        let result = fixture.dial(dial)?;
        check(&result, arrives, seen_as, second)
            .with_context(|| format!("first {first}, then {second}"))?;
    }
    refused_redirect_then_loopback()
}

shared_test!(bound_port_without_an_address);
fn bound_port_without_an_address(fixture: &SharedFixture) -> Result<()> {
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        let port = 23_456 + family as u16;
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.source = Some(at(any, port));
        let connected = fixture
            .dial(dial)?
            .map_err(|errno| anyhow!("errno {errno}"))?;
        let own = at(POD[family], port);
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(
            connected.server.peer == own && connected.client.local == own,
            "{connected:?}"
        );
        ensure!(connected.client.peer == to, "{connected:?}");
        ensure!(
            crate::fixture::original(&connected.server, to) == Ok(to),
            "{connected:?}"
        );
    }
    Ok(())
}

shared_test!(one_bound_port_to_two_destinations);
fn one_bound_port_to_two_destinations(fixture: &SharedFixture) -> Result<()> {
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        for (number, source) in [any, POD[family]].into_iter().enumerate() {
            let to = at(VIP[family], 80);
            let mut dial = Dial::new(&APP, to);
            dial.source = Some(at(source, 23_460 + number as u16));
            dial.beside = Some(at(VIP[family], 8080));
            let result = fixture.dial(dial)?;
            check(&result, Arrives::Sidecar(15001), POD[family], to)
                .with_context(|| format!("from {source}"))?;
        }
    }
    Ok(())
}

shared_test!(bound_to_the_port_of_a_target);
/// For IPv6 client and target are both on ::1: with one port the client would connect to itself.
fn bound_to_the_port_of_a_target(fixture: &SharedFixture) -> Result<()> {
    let to = at(VIP[1], 80);
    let seed = fixture.agent.places.maps()?.target_seed.get(&0)?;
    let seed = seed
        .filter(|seed| *seed != 0)
        .context("the node's secret")?;
    let target = Target::shared((to.ip().into(), to.port()), 15001, 1, seed);
    // A connection of another test may have this port for a while.
    eventually(Duration::from_secs(10), || {
        let mut dial = Dial::new(&APP, to);
        dial.source = Some(at("::", target.port));
        check(&fixture.dial(dial)?, Arrives::Sidecar(15001), POD[1], to)
    })
}

/// Leaves a pod so many ports for its clients.
fn leave_ports(fixture: &PodFixture, ports: usize) -> Result<()> {
    let range = format!("net.ipv4.ip_local_port_range=40000 {}", 40_000 + ports - 1);
    let netns = &fixture.pod.netns;
    run_words(&["ip", "netns", "exec", netns, "sysctl", "-qw", &range]).map(drop)
}

shared_test!(more_connections_than_ports);
/// A client has as many connections as its ports allow, to each destination.
fn more_connections_than_ports(_: &SharedFixture) -> Result<()> {
    const PORTS: usize = 20;
    const DESTINATIONS: u16 = 10;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    leave_ports(&fixture, PORTS)?;
    for vip in VIP {
        let outcomes = (0..DESTINATIONS)
            .flat_map(|n| std::iter::repeat_n(at(vip, 1000 + n), PORTS))
            .map(|to| fixture.client.hold(Dial::new(&APP, to)));
        for outcome in outcomes {
            let connected = outcome?.map_err(|errno| anyhow!("{vip}: errno {errno}"))?;
            ensure!(connected.accepted_by == 15001, "{connected:?}");
        }
        let to = at(vip, 1000);
        let result = fixture.client.dial(Dial::new(&APP, to))?;
        ensure!(result == Err(libc::EADDRNOTAVAIL), "{result:?}");
    }
    Ok(())
}

shared_test!(ports_in_time_wait_are_used_again_with_names_of_their_own);
/// A few ports for many connections: most are made from a port whose last connection is in TIME_WAIT.
fn ports_in_time_wait_are_used_again_with_names_of_their_own(_: &SharedFixture) -> Result<()> {
    const PORTS: usize = 16;
    const CONNECTIONS: u16 = 120;
    const DESTINATIONS: u16 = 4;
    /// TIME_WAIT is reused after a second (`tcp_twsk_unique`).
    const REUSED_AFTER: Duration = Duration::from_millis(1100);
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    leave_ports(&fixture, PORTS)?;
    for (vip, own) in VIP.into_iter().zip(POD) {
        let mut remaining = CONNECTIONS;
        let mut pauses = 0;
        while remaining > 0 {
            let to = at(vip, 1000 + remaining % DESTINATIONS);
            let result = fixture.client.dial(Dial::new(&APP, to))?;
            if result == Err(libc::EADDRNOTAVAIL) {
                pauses += 1;
                ensure!(pauses < 20, "{remaining} connections to {vip} remain");
                thread::sleep(REUSED_AFTER);
                continue;
            }
            check(&result, Arrives::Sidecar(15001), own, to)?;
            remaining -= 1;
        }
        ensure!(pauses > 0, "{vip}: no port was used again");
    }
    Ok(())
}

shared_test!(a_dissolved_redirect_leaves_no_trace);
fn a_dissolved_redirect_leaves_no_trace(fixture: &SharedFixture) -> Result<()> {
    for (family, any) in ["0.0.0.0", "::"].into_iter().enumerate() {
        let listening = fixture.client.reuse(at(VIP[family], 80))?;
        ensure!(
            listening.address.ip() == crate::fixture::ip(any)
                && listening.original.iter().all(Result::is_err),
            "{listening:?}"
        );
        for to in [at(VIP[family], 8080), at(POD[family], 80)] {
            let mut dial = Dial::new(&APP, to);
            dial.first = Some(at(VIP[family], 80));
            dial.dissolve = true;
            let arrives = if to.ip() == crate::fixture::ip(POD[family]) {
                Arrives::Untouched
            } else {
                Arrives::Sidecar(15001)
            };
            check(&fixture.dial(dial)?, arrives, POD[family], to)?;
        }
    }
    Ok(())
}

shared_test!(a_sidecar_on_loopback);
/// It listens on 127.0.0.1 or ::1 only, before its pod is enrolled or after.
fn a_sidecar_on_loopback(_: &SharedFixture) -> Result<()> {
    for listens_first in [true, false] {
        let fixture = PodFixture::new()?;
        let sidecar = fixture.pod.actor()?;
        let listen = || -> Result<()> {
            let ports = ["127.0.0.1", "::1"].map(|it| [at(it, 15001), at(it, 15006)]);
            for address in ports.into_iter().flatten() {
                sidecar.listen_group(Listen {
                    address,
                    owner: PROXY,
                    sockets: 1,
                    v6_only: true,
                    transparent: false,
                    mptcp: false,
                })?;
            }
            Ok(())
        };
        if listens_first {
            listen()?;
        }
        fixture.enroll(&[])?;
        if !listens_first {
            listen()?;
        }
        for family in [0, 1] {
            let to = at(VIP[family], 80);
            check(&fixture.dial(to)?, Arrives::Sidecar(15001), POD[family], to)
                .with_context(|| format!("listens first: {listens_first}"))?;
            let own = at(POD[family], 80);
            let result = fixture.client.dial(Dial::new(&PROXY, own))?;
            check(&result, Arrives::Sidecar(15006), POD[family], own)
                .with_context(|| format!("the proxy, listens first: {listens_first}"))?;
        }
    }
    Ok(())
}

shared_test!(failed_connects_leave_no_row);
fn failed_connects_leave_no_row(fixture: &SharedFixture) -> Result<()> {
    let places = &fixture.agent.places;
    failed_connects_of_one_pod()?;
    // And no row of this run's many connections remains; other tests may have some in flight.
    eventually(Duration::from_secs(5), || {
        let rows = places.map("HANDSHAKES")?;
        ensure!(rows.is_empty(), "rows remain: {rows:?}");
        Ok(())
    })
}

shared_test!(large_getsockopt_answers_pass);
/// iptables-save reads its table with one large getsockopt call.
fn large_getsockopt_answers_pass(fixture: &SharedFixture) -> Result<()> {
    const RULES: usize = 400;
    let rules: String = (0..RULES)
        .map(|n| {
            format!(
                "-A INPUT -s 192.0.2.{}/32 -p tcp --dport {} -j ACCEPT\n",
                n % 256,
                1 + n
            )
        })
        .collect();
    let text = format!("*filter\n{rules}COMMIT\n");
    let script = format!(
        "echo $$ > {}/cgroup.procs; \
         ip netns exec {netns} iptables-legacy-restore <<'END' && ip netns exec {netns} iptables-legacy-save -t filter; \
         ip netns exec {netns} iptables-legacy -F\n{text}END\n",
        fixture.pod.cgroup.display(),
        netns = fixture.pod.netns
    );
    let saved = run_words(&["sh", "-c", &script])?;
    let count = saved
        .lines()
        .filter(|line| line.starts_with("-A INPUT"))
        .count();
    ensure!(count == RULES, "{count} of {RULES} rules came back");
    Ok(())
}

shared_test!(map_dumps_are_readable);
fn map_dumps_are_readable(fixture: &SharedFixture) -> Result<()> {
    let pods = fixture.agent.places.map("POD_BY_NETNS")?;
    let row = &pods.first().context("no pod row")?["formatted"];
    ensure!(row["value"]["policy"].is_u64(), "{row}");
    let policies = fixture.agent.places.map("POLICY_BY_ID")?;
    let policy = &policies.first().context("no policy row")?["formatted"]["value"];
    ensure!(
        policy["outbound_port"] == 15001 && policy["proxy_uid"] == 1337,
        "{policy}"
    );
    Ok(())
}

/// Used by tests that need a reuse_port group.
pub fn group(port: u16, sockets: usize) -> Listen {
    Listen {
        address: at("0.0.0.0", port),
        owner: PROXY,
        sockets,
        v6_only: true,
        transparent: false,
        mptcp: false,
    }
}

fn refused_redirect_then_loopback() -> Result<()> {
    let fixture = PodFixture::new()?;
    let app = fixture.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    fixture.enroll(&[])?;
    let to = at("127.0.0.1", 80);
    let mut dial = Dial::new(&APP, to);
    dial.first = Some(at(VIP[0], 80));
    let result = fixture.client.dial(dial)?;
    check(&result, Arrives::Untouched, "127.0.0.1", to)
}

fn failed_connects_of_one_pod() -> Result<()> {
    let fixture = PodFixture::new()?;
    // With handshake rows: targets do not name the destination where rules capture loopback.
    let ranges = "10.0.0.0/8,127.0.0.0/8";
    fixture.enroll(&[("traffic.sidecar.istio.io/includeOutboundIPRanges", ranges)])?;
    let places = &fixture.agent.places;
    // Refused at once.
    let result = fixture.dial(at(VIP[0], 80))?;
    ensure!(result == Err(libc::ECONNREFUSED), "{result:?}");
    // A SYN without an answer: the row is there while the client waits.
    run(&format!(
        "ip netns exec {} iptables -A INPUT -p tcp --dport 15001 -j DROP",
        fixture.pod.netns
    ))?;
    thread::scope(|scope| {
        let dialing = scope.spawn(|| fixture.dial(at(VIP[0], 80)));
        eventually(Duration::from_secs(1), || {
            ensure!(
                !places.map("HANDSHAKES")?.is_empty(),
                "no row while connecting"
            );
            Ok(())
        })?;
        let result = dialing
            .join()
            .map_err(|_| anyhow!("the dialing thread panicked"))??;
        ensure!(result.is_err(), "{result:?}");
        anyhow::Ok(())
    })?;
    let rows = places.map("HANDSHAKES")?;
    ensure!(rows.is_empty(), "{rows:?}");
    let count = places.map("HANDSHAKE_COUNT")?;
    ensure!(count[0]["formatted"]["value"] == 0, "{count:?}");
    Ok(())
}
