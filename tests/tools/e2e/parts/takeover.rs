//! Running pods whose iptables rules redirect are enrolled, released and enrolled again.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    load::{Window, wait_until_printed},
    mesh::Init,
    report::Checks,
    world::{LEGACY, SOON, World},
};

/// Before the first change: connection tracking remembers these connections for two minutes.
const BEFORE: Duration = Duration::from_secs(30);
/// Labels change that often in the given time.
const CHANGES: u32 = 6;

pub fn run(world: &World, checks: &mut Checks<'_>) -> Result<()> {
    let kube = &world.kube;
    world.start_mesh(LEGACY, Init::Istio)?;
    let all = Duration::from_secs(world.options.takeover);
    let window = Window::open();
    thread::sleep(BEFORE.min(all / 4));
    let start = Instant::now();
    let mut enrolled = Vec::new();
    let mut labeled = false;
    let mut turn = 0;
    while start.elapsed() < all {
        labeled = !labeled;
        turn += 1;
        kube.label(LEGACY, Some(if labeled { "enabled" } else { "disabled" }))?;
        world.wait_enrolled(LEGACY, if labeled { 2 } else { 0 }, SOON)?;
        let inside = Window::open();
        thread::sleep((all / CHANGES).saturating_sub(Duration::from_secs(1)));
        if labeled {
            enrolled.push(inside.end_inside());
        }
    }
    let period = window.end();
    wait_until_printed();
    checks.record(
        &format!(
            "labels changed {turn} times in {} s",
            start.elapsed().as_secs()
        ),
        period.seen(kube, LEGACY)?.none_failed(),
    );
    // Outside these times a request may go past a sidecar by iptables itself: its entry for a connection of the
    // sidecar that has just ended answers for one of the app with the same ports.
    let mut requests = 0;
    let through = enrolled.iter().try_for_each(|period| {
        let seen = period.seen(kube, LEGACY)?;
        requests += seen.calls();
        seen.all_through_sidecars().map(drop)
    });
    checks.record(
        "while the pods are enrolled every request goes through both sidecars",
        through.map(|()| format!("{requests} requests")),
    );
    if world.options.keep {
        return Ok(());
    }
    kube.delete_namespace(LEGACY)
}
