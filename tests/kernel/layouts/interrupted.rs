//! Leaving an older layout is interrupted.

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    network::manifest,
    node::VIP,
    product::sys,
    protocol::{APP, Dial},
};
use nix::sys::signal::Signal;

use super::{OLDER, end_as, inbound, redirects, right, six::started, version};
use crate::fixture::{PodFixture, at};

kernel_test!(a_pod_that_cannot_be_enrolled_keeps_it);
/// A pod that can no longer be enrolled keeps what the older build has attached.
fn a_pod_that_cannot_be_enrolled_keeps_it() -> Result<()> {
    let (mut fixture, _sidecar) = started(&[])?;
    end_as(&mut fixture, OLDER)?;
    let bad = [("traffic.sidecar.istio.io/excludeOutboundPorts", "no-port")];
    fixture.lab.write_pod("app", &fixture.pod, &bad)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.wait("the problem", || {
        let problems = fixture.agent.places.json(&["status", "-o", "json"])?;
        let text = problems["agent"]["problems"].to_string();
        Ok(
            text.contains(&format!("the hooks of layout {OLDER} stay"))
                && text.contains("test/app"),
        )
    })?;
    ensure!(redirects(&fixture));
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)?;
    fixture.enroll(&[])?;
    fixture.wait("it is left", || Ok(!redirects(&fixture)))?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)
}

kernel_test!(an_agent_that_is_killed_goes_on);
/// In the middle of leaving the old layout: one of its hooks is gone, the rest is there.
fn an_agent_that_is_killed_goes_on() -> Result<()> {
    let (mut fixture, _sidecar) = started(&[])?;
    let other = fixture.lab.pod("other", 3)?;
    let write_other = |fixture: &PodFixture, ports: &str| {
        let annotations = [("traffic.sidecar.istio.io/excludeOutboundPorts", ports)];
        let text = manifest("other", &other, &annotations);
        fixture.lab.write_manifest("other", &text)
    };
    write_other(&fixture, "81")?;
    fixture.agent.places.wait_enrolled("test/other")?;
    end_as(&mut fixture, OLDER)?;
    // The agent leaves the old layout alone while one of its pods is not enrolled.
    write_other(&fixture, "no-port")?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    fixture.agent.end(Signal::SIGKILL)?;
    let link = sys::open_pin(&version(&fixture, OLDER).join("links/connect4"))
        .context("the old layout's hook")?;
    sys::link_detach(link.as_fd())?;
    drop(link);
    write_other(&fixture, "81")?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.wait("it is left", || Ok(!redirects(&fixture)))?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)?;
    // And in the middle of removing it.
    fixture.agent.end(Signal::SIGKILL)?;
    fs::remove_file(version(&fixture, OLDER).join("links/getpeername6"))?;
    fs::remove_file(version(&fixture, OLDER).join("maps/COUNT_BY_RULE"))?;
    fixture.lab.remove_manifest("app")?;
    fixture.lab.remove_manifest("other")?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture
        .wait("it is removed", || Ok(!version(&fixture, OLDER).exists()))
        .map(drop)
}
