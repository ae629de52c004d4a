//! What an agent leaves when it is killed in the middle of something: its successor must neither be
//! misled by it nor leave it there.

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, WAIT_TIMEOUT},
    network::manifest,
    node::VIP,
    product::{Maps, Pins, sys},
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;
use sidetrack_common::policy::{List, PortKey};

use crate::fixture::{POD, PodFixture, at, nothing_remains};

fn maps(fixture: &PodFixture) -> Result<Maps> {
    fixture.lab.places().maps()
}

/// Kills the agent and starts another when something has been done to what remains of it.
fn meanwhile(
    fixture: &mut PodFixture,
    work: impl FnOnce(&PodFixture, &Maps) -> Result<()>,
) -> Result<()> {
    fixture.agent.end(Signal::SIGKILL)?;
    work(fixture, &maps(fixture)?)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    Ok(())
}

fn accepted_by(fixture: &PodFixture, to: std::net::SocketAddr) -> Result<u16> {
    let connected = fixture.client.dial(Dial::new(&APP, to))?;
    Ok(connected
        .map_err(|errno| anyhow!("errno {errno}"))?
        .accepted_by)
}

kernel_test!(lists_without_their_policy);
/// A policy was being written: its lists are there and its row is not. Its id must not be used
/// for another policy, which would have those lists among its own.
fn lists_without_their_policy() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let excluded = [("traffic.sidecar.istio.io/excludeOutboundPorts", "81")];
    fixture.enroll(&excluded)?;
    let rows = maps(&fixture)?.ports.keys()?.len();
    meanwhile(&mut fixture, |_, maps| {
        let ids = maps.policies.keys()?;
        let last = ids.into_iter().max().context("a policy")?;
        let stray = PortKey {
            policy: last + 1,
            list: List::OutPortExcluded as u16,
            port: 80,
        };
        Ok(maps.ports.insert(&stray, &0)?)
    })?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let by = accepted_by(&fixture, at(VIP, 80))?;
    ensure!(by == 15001, "no policy excludes port 80, {by} took it");
    fixture.agent.places.wait_rows("PORT_RULES", rows)
}

kernel_test!(interfaces_of_a_policy_changed_meanwhile, needs INGRESS_INTERFACE);
/// An interface was excluded, and is not any more when the next agent comes.
fn interfaces_of_a_policy_changed_meanwhile() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let name = "traffic.sidecar.istio.io/excludeInterfaces";
    fixture.enroll(&[(name, "eth0")])?;
    meanwhile(&mut fixture, |fixture, _| {
        let other = manifest("app", &fixture.pod, &[(name, "lo")]);
        fixture.lab.write_manifest("app", &other)
    })?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let rows = fixture.agent.places.map("IFACE_BY_POD")?;
    ensure!(rows.len() == 1, "only lo is excluded: {rows:?}");
    let inbound = fixture.outside.dial(Dial::new(&APP, at("10.77.0.2", 80)))?;
    ensure!(
        inbound.is_ok_and(|inbound| inbound.accepted_by == 15006),
        "what arrives on eth0 is the sidecar's"
    );
    Ok(())
}

kernel_test!(a_pod_removed_in_part, needs INGRESS_INTERFACE);
/// A pod was being removed: its row and its link are gone, the rest is there.
fn a_pod_removed_in_part() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[("traffic.sidecar.istio.io/excludeInterfaces", "lo")])?;
    accepted_by(&fixture, at(VIP, 80))?;
    meanwhile(&mut fixture, |fixture, maps| {
        for cookie in maps.pods.keys()? {
            maps.pods.remove(&cookie)?;
            let pods = fixture.lab.places().pins().join("pods");
            fs::remove_dir_all(pods.join(cookie.to_string()))?;
        }
        for route in maps.routes.keys()? {
            maps.routes.remove(&route)?;
        }
        ensure!(!maps.counts.keys()?.is_empty(), "connections were counted");
        ensure!(!maps.listeners.keys()?.is_empty(), "a listener was known");
        fixture.lab.remove_manifest("app")
    })?;
    nothing_remains(&fixture.agent.places)
}

kernel_test!(a_wrong_count_of_handshakes);
/// The programs' count of handshakes is far off.
fn a_wrong_count_of_handshakes() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    for wrong in [65_000, 500_u64.wrapping_neg()] {
        meanwhile(&mut fixture, |_, maps| {
            Ok(maps.handshake_count.insert(&0, &wrong)?)
        })?;
        let count = maps(&fixture)?.handshake_count.get(&0)?;
        ensure!(count == Some(0), "{wrong} became {count:?}");
        ensure!(accepted_by(&fixture, at(VIP, 80))? == 15001);
    }
    Ok(())
}

kernel_test!(an_inbound_link_detached_meanwhile);
/// No listing says what is wanted of the pod: what it has stays, and is made whole again.
fn an_inbound_link_detached_meanwhile() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    meanwhile(&mut fixture, |fixture, maps| {
        let pins = Pins::new(&fixture.lab.places().bpffs)?;
        for cookie in maps.pods.keys()? {
            let link = sys::open_pin(&pins.pod_link(cookie))?;
            sys::link_detach(link.as_fd())?;
        }
        fixture.lab.write_manifest("app", "kind: [")
    })?;
    ensure!(accepted_by(&fixture, at(VIP, 80))? == 15001, "outbound");
    eventually(WAIT_TIMEOUT, || {
        let inbound = fixture.outside.connect(&ROOT, at(POD[0], 80))?;
        ensure!(inbound.accepted_by == 15006, "{inbound:?}");
        Ok(())
    })
}
