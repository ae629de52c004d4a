//! Pods do not see each other's connections, and pods that are not enrolled see nothing.

use std::{net::IpAddr, thread};

use anyhow::{Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, WAIT_TIMEOUT},
    network::Lab,
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};

use crate::{
    bounds::{WITH_HANDSHAKE_ROWS, filter, wait_no_handshakes},
    fixture::{Arrives, at, check, ip},
};

kernel_test!(same_addresses_and_ports_at_once);
fn same_addresses_and_ports_at_once() -> Result<()> {
    const ROUNDS: u16 = 100;
    let mut lab = Lab::new()?;
    let first = lab.pod_at("one", "10.77.0.7", "fd77::7")?;
    let second = lab.pod_at("two", "10.77.0.7", "fd77::7")?;
    lab.write_pod("one", &first, &[])?;
    lab.write_pod("two", &second, &[])?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/one")?;
    agent.places.wait_enrolled("test/two")?;
    let _sidecars = [sidecar::start(&first, &[])?, sidecar::start(&second, &[])?];
    let clients = [first.actor()?, second.actor()?];
    // Both pods use the same source address and port at the same time, for different services.
    let dial_all = |client: &Actor, service: &str| -> Result<()> {
        for round in 0..ROUNDS {
            let to = at(service, 80);
            let mut dial = Dial::new(&APP, to);
            dial.source = Some(at("10.77.0.7", 20_000 + round));
            check(
                &client.dial(dial)?,
                Arrives::Sidecar(15001),
                "10.77.0.7",
                to,
            )?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| dial_all(&clients[1], "10.200.0.2"));
        dial_all(&clients[0], "10.200.0.1")?;
        other
            .join()
            .map_err(|_| anyhow!("the other pod's thread panicked"))?
    })
}

kernel_test!(same_addresses_and_ports_have_handshake_rows_of_their_own);
/// Two pods are in the same handshake at the same time, to different destinations.
fn same_addresses_and_ports_have_handshake_rows_of_their_own() -> Result<()> {
    const SERVICES: [&str; 2] = ["10.200.0.1", "10.200.0.2"];
    let mut lab = Lab::new()?;
    let pods = [
        lab.pod_at("one", "10.77.0.7", "fd77::7")?,
        lab.pod_at("two", "10.77.0.7", "fd77::7")?,
    ];
    let _agent = Agent::start(lab.places())?;
    let maps = lab.places().maps()?;
    let mut actors = Vec::new();
    for (name, pod) in ["one", "two"].into_iter().zip(&pods) {
        lab.enroll(name, pod, &WITH_HANDSHAKE_ROWS)?;
        filter(pod, "A", "DROP")?;
        actors.push((sidecar::start(pod, &[])?, pod.actor()?));
    }
    thread::scope(|scope| {
        let dials = actors.iter().zip(SERVICES).map(|((_, client), service)| {
            let mut dial = Dial::new(&APP, at(service, 80));
            dial.source = Some(at("10.77.0.7", 20_000));
            dial.patience_ms = 10_000;
            scope.spawn(|| client.dial(dial))
        });
        let dials: Vec<_> = dials.collect();
        let rows = eventually(WAIT_TIMEOUT, || {
            let rows = maps.handshakes.rows()?;
            ensure!(rows.len() == pods.len(), "{} rows", rows.len());
            Ok(rows)
        })?;
        let mut dialed: Vec<(u16, IpAddr)> = rows
            .iter()
            .map(|(key, row)| (key.client_port, row.handshake.dialed.into()))
            .collect();
        dialed.sort_unstable();
        ensure!(
            dialed == SERVICES.map(|service| (20_000, ip(service))),
            "{dialed:?}"
        );
        ensure!(rows[0].0.netns != rows[1].0.netns, "one pod has both rows");
        for pod in &pods {
            filter(pod, "D", "DROP")?;
        }
        for (dial, service) in dials.into_iter().zip(SERVICES) {
            let result = dial
                .join()
                .map_err(|_| anyhow!("a dialing thread panicked"))??;
            check(
                &result,
                Arrives::Sidecar(15001),
                "10.77.0.7",
                at(service, 80),
            )?;
        }
        wait_no_handshakes(&maps)
    })
}

kernel_test!(an_unenrolled_pod_is_untouched);
fn an_unenrolled_pod_is_untouched() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside("10.109.118.31")?;
    let enrolled = lab.pod("app", 2)?;
    let other = lab.pod("other", 3)?;
    lab.write_pod("app", &enrolled, &[])?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let outside = lab.outside().actor()?;
    sidecar::listen(&outside, &ROOT, 80)?;
    let servers = sidecar::start(&other, &[80])?;
    let to = at("10.109.118.31", 80);
    let connected = servers.connect(&APP, to)?;
    ensure!(connected.server.local == to, "outbound: {connected:?}");
    ensure!(
        connected.client.original_v4 == Err(libc::ENOENT),
        "no answer: {connected:?}"
    );
    let to = at("10.77.0.3", 80);
    let connected = outside.connect(&ROOT, to)?;
    ensure!(connected.accepted_by == 80, "inbound: {connected:?}");
    let counts = agent.places.map("COUNT_BY_RULE")?;
    ensure!(counts.is_empty(), "nothing of it is counted: {counts:?}");
    Ok(())
}
