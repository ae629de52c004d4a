//! Maps of another layout: an agent leaves them alone, and cleanup removes them. The other layout is ours under another
//! number: the agent never looks into its maps.

use std::{
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::Agent,
    node::VIP,
    product::sys,
    protocol::{APP, Connected, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;
use sidetrack_common::LAYOUT_VERSION;

use crate::fixture::{PodFixture, at};

/// Ours, and those beside it.
const OURS: u32 = LAYOUT_VERSION;
const OTHERS: [u32; 2] = [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1];

fn version(fixture: &PodFixture, number: u32) -> PathBuf {
    fixture.lab.places().layout(number)
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

fn started() -> Result<(PodFixture, lab::actor::Actor)> {
    let fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    Ok((fixture, sidecar))
}

/// Ends the agent, and moves what remains of it.
fn end_to(fixture: &mut PodFixture, to: &Path) -> Result<()> {
    fixture.agent.end(Signal::SIGTERM)?;
    fs::rename(version(fixture, OURS), to).context("rename the layout")
}

fn start(fixture: &mut PodFixture) -> Result<()> {
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app").map(drop)
}

kernel_test!(another_one_is_refused);
fn another_one_is_refused() -> Result<()> {
    let (mut fixture, _sidecar) = started()?;
    for number in OTHERS {
        let other = version(&fixture, number);
        end_to(&mut fixture, &other)?;
        let mut places = fixture.lab.places().clone();
        places.log = fixture.lab.dir().join(format!("refused-{number}.log"));
        let ended = Agent::spawn(&places)?.wait()?;
        ensure!(ended.code() == Some(1), "{ended}");
        let log = places.log();
        for words in [
            "of another sidetrack version",
            &format!("(layout {number})"),
            &format!("(layout {OURS})"),
            "install that version again",
            "sidetrack cleanup",
        ] {
            ensure!(log.contains(words), "no {words:?} in {log}");
        }
        ensure!(!version(&fixture, OURS).exists(), "something remains of it");
        right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
        inbound(&fixture)?;
        // That version again.
        fs::rename(&other, version(&fixture, OURS))?;
        start(&mut fixture)?;
        right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    }
    Ok(())
}

kernel_test!(cleanup_removes_all_of_them);
fn cleanup_removes_all_of_them() -> Result<()> {
    let (mut fixture, _sidecar) = started()?;
    // Beside each other: as if nothing had ever been there.
    let asides = OTHERS.map(|number| {
        let aside = format!("aside-{number}");
        (fixture.lab.places().bpffs.join(aside), number)
    });
    for (aside, _) in &asides {
        end_to(&mut fixture, aside)?;
        start(&mut fixture)?;
    }
    fixture.agent.end(Signal::SIGKILL)?;
    for (aside, number) in &asides {
        fs::rename(aside, version(&fixture, *number))?;
    }
    let beyond = LAYOUT_VERSION + 2;
    // Of a half-done start: a pin that is not in place yet, and an empty directory.
    let link = sys::open_pin(&version(&fixture, OURS).join("links/connect4"))?;
    sys::pin(
        link.as_fd(),
        &version(&fixture, OURS).join("links/connect4_new"),
    )?;
    fs::create_dir_all(version(&fixture, beyond).join("maps"))?;
    // And a pin that sidetrack did not create.
    let foreign = fixture.lab.places().bpffs.join("sidetrack/foreign");
    sys::pin(link.as_fd(), &foreign)?;
    drop(link);
    let removed = fixture.lab.places().json(&["cleanup", "-o", "json"])?;
    let text = removed.to_string();
    for words in [
        &format!("v{OURS}/links/connect4_new"),
        &format!("v{}/links/getsockopt", OTHERS[0]),
        &format!("v{}/links/connect4", OTHERS[1]),
        &format!("v{}/maps/POD_BY_NETNS", OTHERS[1]),
        &format!("v{beyond}"),
    ] {
        ensure!(text.contains(words), "no {words} in {text}");
    }
    let links: Vec<&str> = removed["links"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|link| link.as_str())
        .collect();
    let redirecting = |link: &&str| link.contains("/links/connect") || link.ends_with("/sk_lookup");
    let last = links.iter().rposition(redirecting).context("a hook")?;
    let first = links.iter().position(|link| !redirecting(link));
    ensure!(first.is_some_and(|first| first > last), "{links:?}");
    ensure!(
        removed["left"].to_string().contains("sidetrack/foreign"),
        "{removed}"
    );
    ensure!(foreign.exists() && !version(&fixture, OURS).exists());
    let tree = lab::command::run_words(&[
        "bpftool",
        "cgroup",
        "show",
        &fixture.lab.places().cgroup.to_string_lossy(),
    ])?;
    ensure!(!tree.contains("st_"), "{tree}");
    let by = fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(by.is_ok_and(|by| by.accepted_by == 80), "nothing redirects");
    fs::remove_file(&foreign)?;
    let again = fixture.lab.places().json(&["cleanup", "-o", "json"])?;
    ensure!(again["other"].to_string().contains("sidetrack"), "{again}");
    ensure!(!fixture.lab.places().bpffs.join("sidetrack").exists());
    Ok(())
}
