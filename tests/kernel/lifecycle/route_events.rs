//! Changes in a pod's network are followed when they happen, not at the next periodic retry.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::product::{Maps, Pins};
use sidetrack_common::{
    addr::Addr,
    pod::{RouteKey, RouteKind},
};

use crate::fixture::PodFixture;

kernel_test!(changes_are_followed_by_events);
/// Each change is made when the one before is in the map. Followed by the retry, which comes twice a
/// second, each but the first would take about half a second.
fn changes_are_followed_by_events() -> Result<()> {
    const ROUNDS: u8 = 4;
    const USUAL: Duration = Duration::from_millis(250);
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let maps = Maps::open(&Pins::new(&fixture.lab.places().bpffs)?)?;
    let cookie = *maps.pods.keys()?.first().context("the pod's row")?;
    let mut all = Vec::new();
    for round in 1..=ROUNDS {
        let (route, address) = (
            Ipv4Addr::new(10, 90, round, 1),
            Ipv4Addr::new(10, 91, round, 1),
        );
        for (change, of, wanted) in [
            (
                format!("route add blackhole 10.90.{round}.0/24"),
                route,
                RouteKind::Blackhole,
            ),
            (
                format!("address add {address}/32 dev eth0"),
                address,
                RouteKind::Local,
            ),
            (
                format!("route del blackhole 10.90.{round}.0/24"),
                route,
                RouteKind::Unicast,
            ),
            (
                format!("address del {address}/32 dev eth0"),
                address,
                RouteKind::Unicast,
            ),
        ] {
            fixture.pod.ip(&change)?;
            let key = RouteKey::host(cookie, Addr::from(IpAddr::from(of)));
            let start = Instant::now();
            while maps.routes.get(&key)?.map(|row| row.kind) != Some(wanted as u32) {
                ensure!(
                    start.elapsed() < Duration::from_secs(3),
                    "not followed: {change}\n{}",
                    fixture.agent.places.log()
                );
                thread::sleep(Duration::from_millis(1));
            }
            all.push(start.elapsed());
        }
    }
    // The machine may be busy at times; the retry would be late every time.
    all.sort();
    let median = all[all.len() / 2];
    ensure!(median < USUAL, "followed after {all:?}");
    Ok(())
}
