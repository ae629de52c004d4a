//! What an agent leaves when it is killed in the middle of something: its successor must neither be
//! misled by it nor leave it there.

use std::fs;

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::product::{Maps, Pins};
use lab::{
    agent::Agent,
    network::manifest,
    protocol::{APP, Dial},
    sidecar,
};
use nix::sys::signal::Signal;
use sidetrack_common::policy::{List, PortKey};

use crate::{
    OwnTest,
    fixture::{at, nothing_is_left},
    lifecycle::Place,
};

const VIP: &str = "10.109.118.31";

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("half_done::lists_without_their_policy", stray_lists),
        (
            "half_done::interfaces_of_a_policy_changed_meanwhile",
            stray_interfaces,
        ),
        ("half_done::a_pod_removed_in_part", part_of_a_pod),
        ("half_done::a_wrong_count_of_handshakes", wrong_count),
    ]
}

fn maps(place: &Place) -> Result<Maps> {
    Maps::open(&Pins::new(&place.lab.places().bpffs)?)
}

/// Kills the agent and starts another when something has been done to what it left.
fn meanwhile(place: &mut Place, work: impl FnOnce(&Place, &Maps) -> Result<()>) -> Result<()> {
    place.agent.end(Signal::SIGKILL)?;
    work(place, &maps(place)?)?;
    place.agent = Agent::start(place.lab.places())?;
    Ok(())
}

fn accepted_by(place: &Place, to: std::net::SocketAddr) -> Result<u16> {
    let connected = place.client.dial(Dial::new(&APP, to))?;
    Ok(connected
        .map_err(|errno| anyhow!("errno {errno}"))?
        .accepted_by)
}

/// A policy was being written: its lists are there and its row is not. Its id must not be taken for
/// another policy, which would have those lists among its own.
fn stray_lists() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "81")];
    place.enroll(&excluded)?;
    let rows = maps(&place)?.ports.keys()?.len();
    meanwhile(&mut place, |_, maps| {
        let ids = maps.policies.keys()?;
        let last = ids.into_iter().max().context("a policy")?;
        let stray = PortKey {
            policy: last + 1,
            list: List::OutPortExcluded as u16,
            port: 80,
        };
        Ok(maps.ports.insert(&stray, &0)?)
    })?;
    place.agent.places.wait_enrolled("test/app")?;
    let by = accepted_by(&place, at(VIP, 80))?;
    ensure!(by == 15001, "port 80 is excluded by nobody, {by} took it");
    place.agent.places.wait_rows("PORT_RULES", rows)
}

/// An interface was excluded, and is not any more when the next agent comes.
fn stray_interfaces() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    let name = "traffic.sidecar.istio.io/excludeInterfaces";
    place.enroll(&[(name, "eth0")])?;
    meanwhile(&mut place, |place, _| {
        let other = manifest("app", &place.pod, &[(name, "lo")]);
        place.lab.write_manifest("app", &other)
    })?;
    place.agent.places.wait_enrolled("test/app")?;
    let rows = place.agent.places.map("IFACE_BY_POD")?;
    ensure!(rows.len() == 1, "only lo is excluded: {rows:?}");
    let inbound = place.outside.dial(Dial::new(&APP, at("10.77.0.2", 80)))?;
    ensure!(
        inbound.is_ok_and(|inbound| inbound.accepted_by == 15006),
        "what arrives on eth0 is the sidecar's"
    );
    Ok(())
}

/// A pod was being removed: its row and its link are gone, the rest is there.
fn part_of_a_pod() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[("traffic.sidecar.istio.io/excludeInterfaces", "lo")])?;
    accepted_by(&place, at(VIP, 80))?;
    meanwhile(&mut place, |place, maps| {
        for cookie in maps.pods.keys()? {
            maps.pods.remove(&cookie)?;
            let pods = place.lab.places().bpffs.join("sidetrack/v2/pods");
            fs::remove_dir_all(pods.join(cookie.to_string()))?;
        }
        for route in maps.routes.keys()? {
            maps.routes.remove(&route)?;
        }
        ensure!(!maps.counts.keys()?.is_empty(), "connections were counted");
        ensure!(!maps.listeners.keys()?.is_empty(), "a listener was known");
        place.lab.remove_manifest("app")
    })?;
    nothing_is_left(&place.agent.places)
}

/// The programs' count of handshakes is far off.
fn wrong_count() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(&[])?;
    for wrong in [65_000, 500_u64.wrapping_neg()] {
        meanwhile(&mut place, |_, maps| {
            Ok(maps.handshake_count.insert(&0, &wrong)?)
        })?;
        let count = maps(&place)?.handshake_count.get(&0)?;
        ensure!(count == Some(0), "{wrong} became {count:?}");
        ensure!(accepted_by(&place, at(VIP, 80))? == 15001);
    }
    Ok(())
}
