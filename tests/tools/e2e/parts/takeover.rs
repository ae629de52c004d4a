//! Running pods whose iptables rules redirect are enrolled, given back and enrolled again.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{
    load::Window,
    mesh::Init,
    report::Checks,
    world::{LEGACY, World},
};

const SOON: Duration = Duration::from_secs(20);
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
    let mut labeled = false;
    let mut turn = 0;
    while start.elapsed() < all {
        labeled = !labeled;
        turn += 1;
        kube.label(LEGACY, Some(if labeled { "enabled" } else { "disabled" }))?;
        world.wait_enrolled(LEGACY, if labeled { 2 } else { 0 }, SOON)?;
        thread::sleep((all / CHANGES).saturating_sub(Duration::from_secs(1)));
    }
    checks.record(
        &format!(
            "labels changed {turn} times in {} s",
            start.elapsed().as_secs()
        ),
        window.close(kube, LEGACY)?.all_through_sidecars(),
    );
    if world.options.keep {
        return Ok(());
    }
    kube.delete_namespace(LEGACY)
}
