//! A newer layout, and cleanup of all layouts.

use std::{fs, os::fd::AsFd as _};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    node::VIP,
    product::sys,
    protocol::{APP, Dial},
};
use nix::sys::signal::Signal;

use super::{NEWER, OLDER, OURS, end_as, inbound, right, started, version};
use crate::fixture::at;

kernel_test!(a_newer_one_is_refused);
fn a_newer_one_is_refused() -> Result<()> {
    let (mut fixture, _sidecar) = started(&[])?;
    end_as(&mut fixture, NEWER)?;
    let mut places = fixture.lab.places().clone();
    places.log = fixture.lab.dir().join("refused.log");
    let ended = Agent::spawn(&places)?.wait()?;
    ensure!(ended.code() == Some(1), "{ended}");
    let log = places.log();
    for words in [
        "of a newer sidetrack",
        &format!("(layout {NEWER})"),
        &format!("(layout {OURS})"),
        "install that version again",
        "sidetrack cleanup",
    ] {
        ensure!(log.contains(words), "no {words:?} in {log}");
    }
    ensure!(!version(&fixture, OURS).exists(), "it has left something");
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)?;
    // That version again.
    fs::rename(version(&fixture, NEWER), version(&fixture, OURS))?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)
}

kernel_test!(cleanup_removes_all_of_them);
fn cleanup_removes_all_of_them() -> Result<()> {
    let (mut fixture, _sidecar) = started(&[])?;
    for number in [NEWER, OLDER] {
        end_as(&mut fixture, number)?;
        if number == NEWER {
            // Another beside it: as if nothing had ever been there.
            let aside = fixture.lab.places().bpffs.join("aside");
            fs::rename(version(&fixture, NEWER), &aside)?;
            fixture.agent = Agent::start(fixture.lab.places())?;
            fixture.agent.places.wait_enrolled("test/app")?;
        }
    }
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.end(Signal::SIGKILL)?;
    fs::rename(
        fixture.lab.places().bpffs.join("aside"),
        version(&fixture, NEWER),
    )?;
    // Of a half-done start: a pin that is not in place yet, and an empty directory.
    let link = sys::open_pin(&version(&fixture, OURS).join("links/connect4"))?;
    sys::pin(
        link.as_fd(),
        &version(&fixture, OURS).join("links/connect4_new"),
    )?;
    fs::create_dir_all(version(&fixture, NEWER + 1).join("maps"))?;
    // And a pin that sidetrack did not create.
    let foreign = fixture.lab.places().bpffs.join("sidetrack/foreign");
    sys::pin(link.as_fd(), &foreign)?;
    drop(link);
    let removed = fixture.lab.places().json(&["cleanup", "-o", "json"])?;
    let text = removed.to_string();
    for words in [
        &format!("v{OLDER}/links/getsockopt"),
        &format!("v{OURS}/links/connect4_new"),
        &format!("v{NEWER}/links/connect4"),
        &format!("v{NEWER}/maps/POD_BY_NETNS"),
        &format!("v{}", NEWER + 1),
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
