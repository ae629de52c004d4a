//! Maps of other layouts: an agent takes over from a build with an older one under traffic, and
//! leaves a newer one alone. The newer layout is ours under another number: the agent never looks
//! into its maps.

mod downgrade;
mod interrupted;
mod six;
mod upgrade;

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    node::VIP,
    protocol::{Connected, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use sidetrack_common::LAYOUT_VERSION;

use crate::fixture::{PodFixture, at};

/// What is older, ours, and one newer.
const OLDER: u32 = 6;
const OURS: u32 = LAYOUT_VERSION;
const NEWER: u32 = LAYOUT_VERSION + 1;

fn version(fixture: &PodFixture, number: u32) -> PathBuf {
    fixture.lab.places().layout(number)
}

/// Ends the agent; what it has left becomes that of another layout, if it is not already.
fn end_as(fixture: &mut PodFixture, number: u32) -> Result<()> {
    fixture.agent.end(Signal::SIGTERM)?;
    let dir = version(fixture, number);
    if !dir.exists() {
        fs::rename(version(fixture, OURS), &dir).context("rename the layout")?;
        if number == OLDER {
            six::convert(&dir.join("maps"))?;
        }
    }
    Ok(())
}

fn right(connected: Result<Connected, i32>) -> Result<()> {
    let connected = connected.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    ensure!(connected.client.peer == at(VIP, 80), "{connected:?}");
    ensure!(
        connected.server.original_v4 == Ok(at(VIP, 80)),
        "{connected:?}"
    );
    Ok(())
}

fn inbound(fixture: &PodFixture) -> Result<()> {
    let inbound = fixture.outside.connect(&ROOT, at("10.77.0.2", 80))?;
    ensure!(inbound.accepted_by == 15006, "{inbound:?}");
    ensure!(
        inbound.server.original_v4 == Ok(at("10.77.0.2", 80)),
        "{inbound:?}"
    );
    Ok(())
}

/// Whether the older layout still redirects.
fn redirects(fixture: &PodFixture) -> bool {
    let dir = version(fixture, OLDER);
    let pods = fs::read_dir(dir.join("pods")).into_iter().flatten();
    dir.join("links/connect4").exists()
        || dir.join("links/connect6").exists()
        || pods
            .flatten()
            .any(|pod| pod.path().join("sk_lookup").exists())
}

fn started(annotations: &[(&str, &str)]) -> Result<(PodFixture, lab::actor::Actor)> {
    let fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(annotations)?;
    Ok((fixture, sidecar))
}
