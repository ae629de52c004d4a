//! The older layout is removed while traffic continues.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::Agent,
    node::VIP,
    protocol::{APP, Dial, ROOT},
};

use super::{OLDER, end_as, inbound, redirects, right, started, version};
use crate::fixture::{PodFixture, at};

kernel_test!(an_older_one_is_left_under_traffic);
fn an_older_one_is_left_under_traffic() -> Result<()> {
    let (mut fixture, _sidecar) = started(&[])?;
    let old = fixture.pod.actor()?;
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    let still_right = |fixture: &PodFixture| -> Result<()> {
        for again in old.again()? {
            right(again)?;
        }
        ensure!(old.echo()? >= 1);
        inbound(fixture)
    };
    end_as(&mut fixture, OLDER)?;
    still_right(&fixture).context("by what is attached")?;
    let done = AtomicBool::new(false);
    let client = &fixture.client;
    let outside = &fixture.outside;
    let log = &fixture.agent.places;
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
                let inbound = outside.connect(&ROOT, at("10.77.0.2", 80))?;
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
    fixture.agent = agent;
    ensure!(dialed > 50, "only {dialed} connections");
    ensure!(!redirects(&fixture), "{}", fixture.agent.places.log());
    ensure!(
        version(&fixture, OLDER).exists(),
        "it answers for the old sockets"
    );
    still_right(&fixture).context("after the retirement")?;
    // New connections are evaluated by the new layout alone.
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    for again in old.again()? {
        let again = again.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(again.client.original_v4 == Ok(at(VIP, 80)), "{again:?}");
    }
    // Its hooks are not mistaken for another program's.
    let problems = fixture.agent.places.json(&["status", "-o", "json"])?["problems"].clone();
    ensure!(problems.as_array().is_some_and(Vec::is_empty), "{problems}");
    // The old pod ends, and with it the old layout.
    fixture.lab.remove_manifest("app")?;
    fixture.wait("the old layout is gone", || {
        Ok(!version(&fixture, OLDER).exists())
    })?;
    fixture.enroll(&[])?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)
}
