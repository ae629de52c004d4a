//! Pods do not see each other's connections, and pods that are not enrolled see nothing.

use std::thread;

use anyhow::{Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    network::{Lab, manifest},
    protocol::{APP, Dial, ROOT},
    sidecar,
};

use crate::fixture::{Arrives, at, check};

kernel_test!(same_addresses_and_ports_at_once);
fn same_addresses_and_ports_at_once() -> Result<()> {
    const ROUNDS: u16 = 100;
    let mut lab = Lab::new()?;
    let first = lab.pod_at("one", "10.77.0.7", "fd77::7")?;
    let second = lab.pod_at("two", "10.77.0.7", "fd77::7")?;
    lab.write_manifest("one", &manifest("one", &first, &[]))?;
    lab.write_manifest("two", &manifest("two", &second, &[]))?;
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

kernel_test!(an_unenrolled_pod_is_untouched);
fn an_unenrolled_pod_is_untouched() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside("10.109.118.31")?;
    let enrolled = lab.pod("app", 2)?;
    let other = lab.pod("other", 3)?;
    lab.write_manifest("app", &manifest("app", &enrolled, &[]))?;
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/app")?;
    let outside = lab.outside().actor()?;
    sidecar::listen(&outside, &ROOT, 80)?;
    let servers = sidecar::start(&other, &[80])?;
    let to = at("10.109.118.31", 80);
    let connected = servers
        .dial(Dial::new(&APP, to))?
        .map_err(|errno| anyhow!("{errno}"))?;
    ensure!(connected.server.local == to, "outbound: {connected:?}");
    ensure!(
        connected.client.original_v4 == Err(libc::ENOENT),
        "no answer: {connected:?}"
    );
    let to = at("10.77.0.3", 80);
    let connected = outside
        .dial(Dial::new(&ROOT, to))?
        .map_err(|errno| anyhow!("{errno}"))?;
    ensure!(connected.accepted_by == 80, "inbound: {connected:?}");
    let counts = agent.places.map("COUNT_BY_RULE")?;
    ensure!(counts.is_empty(), "nothing of it is counted: {counts:?}");
    Ok(())
}
