//! Maps of other layouts: an agent takes over from a build with an older one while traffic goes on,
//! and leaves a newer one alone. The other layout is ours under another number: the agent never looks
//! into its maps, and what is attached is what an older build would have attached.

use std::{
    fs,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::product::sys;
use lab::{
    agent::Agent,
    network::manifest,
    protocol::{APP, Connected, Dial, ROOT},
    sidecar,
};
use nix::sys::signal::Signal;

use crate::{OwnTest, fixture::at, lifecycle::Place};

const VIP: &str = "10.109.118.31";

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("layouts::an_older_one_is_left_under_traffic", upgrade),
        ("layouts::a_pod_that_must_be_mended_keeps_it", rejected),
        ("layouts::an_agent_that_is_killed_goes_on", killed),
        ("layouts::a_newer_one_is_refused", downgrade),
        ("layouts::cleanup_removes_all_of_them", cleanup),
    ]
}

fn version(place: &Place, number: u32) -> PathBuf {
    let root = place.lab.places().bpffs.join("sidetrack");
    root.join(format!("v{number}"))
}

/// Ends the agent and gives what it has left the number of another layout.
fn end_as(place: &mut Place, number: u32) -> Result<()> {
    place.agent.end(Signal::SIGTERM)?;
    fs::rename(version(place, 2), version(place, number)).context("rename the layout")
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

fn inbound(place: &Place) -> Result<()> {
    let inbound = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    let inbound = inbound.map_err(|errno| anyhow!("inbound: errno {errno}"))?;
    ensure!(inbound.accepted_by == 15006, "{inbound:?}");
    ensure!(
        inbound.server.original_v4 == Ok(at("10.77.0.2", 80)),
        "{inbound:?}"
    );
    Ok(())
}

fn wait(place: &Place, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !is_so()? {
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "{what}: not after {:?}\n{}",
            start.elapsed(),
            place.agent.places.log()
        );
        thread::sleep(Duration::from_millis(10));
    }
    eprintln!("{what}: after {:?}", start.elapsed());
    Ok(())
}

/// Whether the older layout still redirects.
fn redirects(place: &Place) -> bool {
    let dir = version(place, 1);
    let pods = fs::read_dir(dir.join("pods")).into_iter().flatten();
    dir.join("links/connect4").exists()
        || dir.join("links/connect6").exists()
        || pods
            .flatten()
            .any(|pod| pod.path().join("sk_lookup").exists())
}

fn started(annotations: &[(&str, &str)]) -> Result<(Place, lab::actor::Actor)> {
    let place = Place::new()?;
    let sidecar = sidecar::start(&place.pod, &[80])?;
    place.enroll(annotations)?;
    Ok((place, sidecar))
}

fn upgrade() -> Result<()> {
    let (mut place, _sidecar) = started(&[])?;
    let old = place.pod.actor()?;
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    let still_right = |place: &Place| -> Result<()> {
        for again in old.again()? {
            right(again)?;
        }
        ensure!(old.echo()? >= 1);
        inbound(place)
    };
    end_as(&mut place, 1)?;
    still_right(&place).context("by what is attached")?;
    let done = AtomicBool::new(false);
    let client = &place.client;
    let outside = &place.outside;
    let log = &place.agent.places;
    let (dialed, agent) = thread::scope(|scope| {
        let busy = scope.spawn(|| -> Result<usize> {
            let mut dialed = 0;
            let dials = vec![Dial::new(&APP, at(VIP, 80)); 10];
            while !done.load(Ordering::Relaxed) {
                for connected in client.dial_all(dials.clone())? {
                    right(connected).with_context(|| format!("after {dialed}"))?;
                    dialed += 1;
                }
            }
            Ok(dialed)
        });
        let arriving = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                let inbound = outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
                let inbound = inbound.map_err(|errno| anyhow!("inbound: errno {errno}"))?;
                ensure!(inbound.accepted_by == 15006, "{inbound:?}");
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        let agent = Agent::start(log);
        let start = Instant::now();
        let retired = || log.log().contains("removed what redirects");
        while !retired() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(300));
        done.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("the traffic panicked");
        let dialed = busy.join().map_err(panicked)?.context("the busy client")?;
        arriving.join().map_err(panicked)?.context("arrivals")?;
        anyhow::Ok((dialed, agent?))
    })?;
    place.agent = agent;
    ensure!(dialed > 50, "only {dialed} connections");
    ensure!(!redirects(&place), "{}", place.agent.places.log());
    ensure!(
        version(&place, 1).exists(),
        "it answers for the old sockets"
    );
    still_right(&place).context("after the retirement")?;
    // Whoever comes now is judged by the new one alone.
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    for again in old.again()? {
        let again = again.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(again.client.original_v4 == Ok(at(VIP, 80)), "{again:?}");
    }
    // Its hooks are not taken for another's.
    let problems = place.agent.places.json(&["status", "-o", "json"])?["problems"].clone();
    ensure!(problems.as_array().is_some_and(Vec::is_empty), "{problems}");
    // The old pod ends, and with it the old layout.
    place.lab.remove_manifest("app")?;
    wait(&place, "the old layout is gone", || {
        Ok(!version(&place, 1).exists())
    })?;
    place.enroll(&[])?;
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&place)
}

/// What cannot be enrolled any more stays judged by what the older build has attached.
fn rejected() -> Result<()> {
    let (mut place, _sidecar) = started(&[])?;
    end_as(&mut place, 1)?;
    let bad = [("traffic.sidecar.istio.io/excludeOutboundPorts", "no-port")];
    place
        .lab
        .write_manifest("app", &manifest("app", &place.pod, &bad))?;
    place.agent = Agent::start(place.lab.places())?;
    wait(&place, "the problem", || {
        let problems = place.agent.places.json(&["status", "-o", "json"])?;
        let text = problems["agent"]["problems"].to_string();
        Ok(text.contains("the hooks of layout 1 stay") && text.contains("test/app"))
    })?;
    ensure!(redirects(&place));
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&place)?;
    place.enroll(&[])?;
    wait(&place, "it is left", || Ok(!redirects(&place)))?;
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&place)
}

/// In the middle of leaving the old layout: one of its hooks is gone, the rest is there.
fn killed() -> Result<()> {
    let (mut place, _sidecar) = started(&[])?;
    end_as(&mut place, 1)?;
    place.agent = Agent::start(place.lab.places())?;
    place.agent.places.wait_enrolled("test/app")?;
    place.agent.end(Signal::SIGKILL)?;
    let connect = version(&place, 1).join("links/connect4");
    if connect.exists() {
        let link = sys::open_pin(&connect)?;
        sys::link_detach(link.as_fd())?;
    }
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    place.agent = Agent::start(place.lab.places())?;
    wait(&place, "it is left", || Ok(!redirects(&place)))?;
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&place)?;
    // And in the middle of removing it.
    place.agent.end(Signal::SIGKILL)?;
    fs::remove_file(version(&place, 1).join("links/getpeername6"))?;
    fs::remove_file(version(&place, 1).join("maps/COUNT_BY_RULE"))?;
    place.lab.remove_manifest("app")?;
    place.agent = Agent::start(place.lab.places())?;
    wait(&place, "it is removed", || Ok(!version(&place, 1).exists()))
}

fn downgrade() -> Result<()> {
    let (mut place, _sidecar) = started(&[])?;
    end_as(&mut place, 3)?;
    let mut places = place.lab.places().clone();
    places.log = place.lab.dir().join("refused.log");
    let ended = Agent::spawn(&places)?.wait()?;
    ensure!(ended.code() == Some(1), "{ended}");
    let log = places.log();
    for words in [
        "of a newer sidetrack",
        "(layout 3)",
        "(layout 2)",
        "install that version again",
        "sidetrack cleanup",
    ] {
        ensure!(log.contains(words), "no {words:?} in {log}");
    }
    ensure!(!version(&place, 2).exists(), "it has left something");
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&place)?;
    // That version again.
    fs::rename(version(&place, 3), version(&place, 2))?;
    place.agent = Agent::start(place.lab.places())?;
    place.agent.places.wait_enrolled("test/app")?;
    right(place.client.dial(Dial::new(&APP, at(VIP, 80)))?)
}

fn cleanup() -> Result<()> {
    let (mut place, _sidecar) = started(&[])?;
    for number in [3, 1] {
        end_as(&mut place, number)?;
        if number == 3 {
            // Another beside it: as if nothing had ever been there.
            let aside = place.lab.places().bpffs.join("aside");
            fs::rename(version(&place, 3), &aside)?;
            place.agent = Agent::start(place.lab.places())?;
            place.agent.places.wait_enrolled("test/app")?;
        }
    }
    place.agent = Agent::start(place.lab.places())?;
    place.agent.end(Signal::SIGKILL)?;
    fs::rename(place.lab.places().bpffs.join("aside"), version(&place, 3))?;
    // Of a half-done start: a pin that is not in place yet, and an empty directory.
    let link = sys::open_pin(&version(&place, 2).join("links/connect4"))?;
    sys::pin(link.as_fd(), &version(&place, 2).join("links/connect4_new"))?;
    fs::create_dir_all(version(&place, 4).join("maps"))?;
    // And somebody else's.
    let stranger = place.lab.places().bpffs.join("sidetrack/stranger");
    sys::pin(link.as_fd(), &stranger)?;
    drop(link);
    let removed = place.lab.places().json(&["cleanup", "-o", "json"])?;
    let text = removed.to_string();
    for words in [
        "v1/links/getsockopt",
        "v2/links/connect4_new",
        "v3/links/connect4",
        "v3/maps/POD_BY_NETNS",
        "v4",
    ] {
        ensure!(text.contains(words), "no {words} in {text}");
    }
    let links: Vec<&str> = removed["links"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|link| link.as_str())
        .collect();
    let redirecting = |link: &&str| link.contains("/links/connect");
    let last = links.iter().rposition(redirecting).context("a hook")?;
    let first = links.iter().position(|link| !redirecting(link));
    ensure!(first.is_some_and(|first| first > last), "{links:?}");
    ensure!(
        removed["left"].to_string().contains("sidetrack/stranger"),
        "{removed}"
    );
    ensure!(stranger.exists() && !version(&place, 2).exists());
    let tree = lab::command::run_words(&[
        "bpftool",
        "cgroup",
        "show",
        &place.lab.places().cgroup.to_string_lossy(),
    ])?;
    ensure!(!tree.contains("st_"), "{tree}");
    let by = place.client.dial(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(by.is_ok_and(|by| by.accepted_by == 80), "nothing redirects");
    fs::remove_file(&stranger)?;
    let again = place.lab.places().json(&["cleanup", "-o", "json"])?;
    ensure!(again["other"].to_string().contains("sidetrack"), "{again}");
    ensure!(!place.lab.places().bpffs.join("sidetrack").exists());
    Ok(())
}
