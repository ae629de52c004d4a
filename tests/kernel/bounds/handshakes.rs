//! Connections that get nowhere leave no row behind.

use std::{
    net::SocketAddrV4,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    node::VIP,
    product::Maps,
    protocol::{APP, Dial, Request, SYN},
    sidecar,
    wait::eventually,
};
use sidetrack_common::rule::Rule;

use super::{UNUSED_COOKIE, WITH_HANDSHAKE_ROWS, accepted_by, filter, maps, wait_no_handshakes};
use crate::fixture::{PodFixture, at, nothing_remains};

/// Another service.
const OTHER_VIP: &str = "10.109.118.32";

/// A pod whose sidecar does not hear of a number of connections, and the client that waits for them.
fn waiting(connections: usize) -> Result<(PodFixture, Actor, Maps, Actor)> {
    let fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    let maps = maps(&fixture.agent.places)?;
    filter(&fixture.pod, "A", "DROP")?;
    let client = fixture.pod.actor()?;
    let flooded = client.flood(at(VIP, 80), connections)?;
    ensure!(flooded.pending == connections, "{flooded:?}");
    ensure!(
        maps.handshakes.keys()?.len() == connections,
        "rows while they wait"
    );
    Ok((fixture, sidecar, maps, client))
}

kernel_test!(a_client_that_is_killed);
fn a_client_that_is_killed() -> Result<()> {
    let (_place, _sidecar, maps, client) = waiting(50)?;
    // By SIGKILL, with all its sockets.
    drop(client);
    wait_no_handshakes(&maps)
}

kernel_test!(two_handshakes_of_one_source);
/// One socket is bound to the pod's address and a port, one to the same port of any address. Both are under
/// way at once.
fn two_handshakes_of_one_source() -> Result<()> {
    const PORT: u16 = 5555;
    let (_fixture, _sidecar, maps, client) = waiting(0)?;
    for (from, to) in [("10.77.0.2", VIP), ("0.0.0.0", OTHER_VIP)] {
        client.ask(&Request::Begin {
            from: at(from, PORT),
            to: at(to, 80),
        })?;
    }
    let rows = maps.handshakes.rows()?;
    let mut dialed: Vec<String> = rows
        .iter()
        .filter(|(key, _)| key.client_port == PORT)
        .map(|(_, row)| std::net::IpAddr::from(row.handshake.dialed).to_string())
        .collect();
    dialed.sort();
    ensure!(dialed == [VIP, OTHER_VIP], "{dialed:?}");
    Ok(())
}

kernel_test!(a_pod_that_leaves_meanwhile);
/// The rows of a removed pod go with its connections.
fn a_pod_that_leaves_meanwhile() -> Result<()> {
    let (fixture, _sidecar, _maps, client) = waiting(50)?;
    let places = &fixture.agent.places;
    fixture.lab.release("app")?;
    drop(client);
    nothing_remains(places)
}

kernel_test!(a_sidecar_that_resets);
fn a_sidecar_that_resets() -> Result<()> {
    const CONNECTIONS: usize = 50;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    filter(&fixture.pod, "A", "REJECT --reject-with tcp-reset")?;
    let client = fixture.pod.actor()?;
    // The sockets stay open; it is the reset that takes the rows away.
    let flooded = client.flood(at(VIP, 80), CONNECTIONS)?;
    ensure!(flooded.failed == 0, "{flooded:?}");
    wait_no_handshakes(&maps(&fixture.agent.places)?)?;
    let counted = count(&fixture, Rule::RangeIncluded)?;
    ensure!(counted == CONNECTIONS as u64, "{counted} were redirected");
    Ok(())
}

/// Connections that a rule decided.
fn count(fixture: &PodFixture, rule: Rule) -> Result<u64> {
    let counts = maps(&fixture.agent.places)?.counts.rows()?;
    let of_rule = counts.iter().filter(|(key, _)| key.rule == rule as u32);
    Ok(of_rule.map(|(_, count)| count).sum())
}

kernel_test!(a_sidecar_that_hangs);
/// It listens and does not accept: its backlog is full at once, further SYNs are ignored.
fn a_sidecar_that_hangs() -> Result<()> {
    const CONNECTIONS: usize = 300;
    let fixture = PodFixture::new()?;
    let sidecar = fixture.pod.actor()?;
    sidecar.ask(&Request::Hang(at("0.0.0.0", 15001)))?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    let maps = maps(&fixture.agent.places)?;
    let client = fixture.pod.actor()?;
    let flooded = client.flood(at(VIP, 80), CONNECTIONS)?;
    ensure!(flooded.pending == CONNECTIONS, "{flooded:?}");
    let waiting = maps.handshakes.keys()?.len();
    ensure!(waiting > CONNECTIONS / 2, "{waiting} rows while they wait");
    drop(client);
    wait_no_handshakes(&maps)
}

kernel_test!(orphaned_handshakes_are_removed);
/// As if the programs had been away when connections closed: what remains of them goes, what waits
/// stays.
fn orphaned_handshakes_are_removed() -> Result<()> {
    const CONNECTIONS: usize = 50;
    const ORPHANS: u16 = 300;
    let (fixture, _sidecar, maps, client) = waiting(CONNECTIONS)?;
    let (mut key, mut row) = maps.handshakes.rows()?.pop().context("a row")?;
    for number in 1..=ORPHANS {
        key.client_port = number;
        row.key = key;
        row.handshake.client_cookie = UNUSED_COOKIE + u64::from(number);
        maps.handshakes.insert(&key, &row)?;
    }
    let counted = (CONNECTIONS + usize::from(ORPHANS)) as u64;
    maps.handshake_count.insert(&0, &counted)?;
    maps.handshakes_by_pod.insert(&key.netns, &counted)?;
    eventually(Duration::from_secs(15), || {
        ensure!(
            maps.handshakes.keys()?.len() == CONNECTIONS,
            "{} rows",
            maps.handshakes.keys()?.len()
        );
        Ok(())
    })?;
    // Two more looks.
    thread::sleep(Duration::from_secs(11));
    ensure!(
        maps.handshakes.keys()?.len() == CONNECTIONS,
        "those that wait"
    );
    let log = fixture.agent.places.log();
    ensure!(log.contains("300 handshakes remained"), "{log}");
    drop(client);
    wait_no_handshakes(&maps)
}

kernel_test!(a_row_of_another_connection_is_not_read);
/// A row is removed, and its memory is another connection's before a program has read it: the row has another key than
/// its own.
fn a_row_of_another_connection_is_not_read() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(OTHER_VIP)?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    let maps = maps(&fixture.agent.places)?;
    let right = fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(
        right.is_ok_and(|it| it.server.original_v4 == Ok(at(VIP, 80))),
        "with a row of its own"
    );
    filter(&fixture.pod, "A", "DROP")?;
    let dialed = thread::scope(|scope| {
        let dialing = scope.spawn(|| fixture.client.dial(Dial::new(&APP, at(VIP, 80))));
        let start = Instant::now();
        let key = loop {
            if let Some(key) = maps.handshakes.keys()?.pop() {
                break key;
            }
            ensure!(start.elapsed() < Duration::from_secs(1), "no row");
        };
        let mut row = maps.handshakes.get(&key)?.context("the row")?;
        row.key.client_port ^= 1;
        row.handshake.dialed = at(OTHER_VIP, 80).ip().into();
        maps.handshakes.insert(&key, &row)?;
        filter(&fixture.pod, "D", "DROP")?;
        let panicked = |_| anyhow!("the dialing thread panicked");
        anyhow::Ok(dialing.join().map_err(panicked)??)
    })?;
    let dialed = dialed.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(
        dialed.server.original_v4 != Ok(at(OTHER_VIP, 80)),
        "the destination of another connection: {dialed:?}"
    );
    Ok(())
}

kernel_test!(bare_syns_make_no_rows);
/// Rows are made in connect, and a raw socket does not connect.
fn bare_syns_make_no_rows() -> Result<()> {
    const SYNS: u16 = 500;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    let maps = maps(&fixture.agent.places)?;
    let raw = fixture.pod.actor()?;
    let own: SocketAddrV4 = "10.77.0.2:40000".parse()?;
    let loopback: SocketAddrV4 = "127.0.0.1:40000".parse()?;
    for (from, to) in [
        (loopback, "127.0.0.1:15001".parse()?),
        (own, "10.77.0.2:15006".parse()?),
        // From another pod, by its source address.
        (own, "10.77.0.2:15001".parse()?),
    ] {
        raw.ask(&Request::Packets {
            from,
            to,
            count: SYNS,
            flags: SYN,
        })?;
        ensure!(maps.handshakes.keys()?.is_empty(), "rows for SYNs to {to}");
    }
    ensure!(
        accepted_by(&fixture.client)? == Ok(15001),
        "connections continue"
    );
    wait_no_handshakes(&maps)
}
