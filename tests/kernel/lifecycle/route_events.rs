//! Changes in a pod's network are followed when they happen, not at the next periodic retry.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::wait::eventually;
use sidetrack_common::{
    addr::Addr,
    pod::{RouteKey, RouteKind},
};

use crate::fixture::PodFixture;

kernel_test!(changes_are_followed_by_events);
/// Each change is made when the one before is in the map. Nothing but an event makes the agent read a
/// settled pod again.
fn changes_are_followed_by_events() -> Result<()> {
    const ROUNDS: u8 = 4;
    const USUAL: Duration = Duration::from_millis(250);
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let maps = fixture.lab.places().maps()?;
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
            let key = RouteKey::host((cookie, 0), Addr::from(IpAddr::from(of)));
            let start = Instant::now();
            eventually(Duration::from_secs(3), || {
                ensure!(
                    maps.routes.get(&key)?.map(|row| row.kind) == Some(wanted as u32),
                    "not followed: {change}\n{}",
                    fixture.agent.places.log()
                );
                Ok(())
            })?;
            all.push(start.elapsed());
        }
    }
    // The machine may be busy at times; the retry would be late every time.
    all.sort();
    let median = all[all.len() / 2];
    ensure!(median < USUAL, "followed after {all:?}");
    Ok(())
}

/// The kind of the row that decides about an address becomes this.
fn wait_kind(fixture: &PodFixture, address: IpAddr, wanted: RouteKind) -> Result<()> {
    let maps = fixture.lab.places().maps()?;
    let cookie = *maps.pods.keys()?.first().context("the pod's row")?;
    let key = RouteKey::host((cookie, 0), Addr::from(address));
    eventually(Duration::from_secs(3), || {
        let kind = maps.routes.get(&key)?.map(|row| row.kind);
        ensure!(
            kind == Some(wanted as u32),
            "the route to {address} is {kind:?}, not {wanted:?}"
        );
        Ok(())
    })
}

kernel_test!(ipv6_routes_are_followed_by_events);
fn ipv6_routes_are_followed_by_events() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    // Events of the pod's own start are over.
    thread::sleep(Duration::from_secs(2));
    fixture
        .pod
        .ip("-6 route add blackhole fdb9::/64 metric 1")?;
    wait_kind(&fixture, "fdb9::1".parse()?, RouteKind::Blackhole)
}

kernel_test!(rules_are_followed_by_events);
/// With a rule of its own every destination counts as reachable.
fn rules_are_followed_by_events() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.pod.ip("route del default")?;
    fixture.pod.ip("route add default dev eth0 table 100")?;
    fixture.enroll(&[])?;
    thread::sleep(Duration::from_secs(2));
    fixture.pod.ip("rule add lookup 100")?;
    wait_kind(&fixture, "10.123.0.1".parse()?, RouteKind::Unicast)
}

kernel_test!(ipv6_rules_are_followed_by_events);
fn ipv6_rules_are_followed_by_events() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.pod.ip("-6 route del default")?;
    fixture.pod.ip("-6 route add default dev eth0 table 100")?;
    fixture.enroll(&[])?;
    let outside: IpAddr = "2001:db8::1".parse()?;
    ensure!(
        wait_kind(&fixture, outside, RouteKind::Unicast).is_err(),
        "it has no route"
    );
    fixture.pod.ip("-6 rule add lookup 100")?;
    wait_kind(&fixture, outside, RouteKind::Unicast)
}

kernel_test!(interfaces_are_followed_by_events, needs INGRESS_INTERFACE);
fn interfaces_are_followed_by_events() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[("traffic.sidecar.istio.io/excludeInterfaces", "eth9")])?;
    fixture
        .pod
        .ip("link add eth8 type veth peer name eth8-end")?;
    fixture.agent.places.wait_rows("IFACE_BY_POD", 0)?;
    thread::sleep(Duration::from_secs(2));
    fixture.pod.ip("link set eth8 name eth9")?;
    fixture.agent.places.wait_rows("IFACE_BY_POD", 1)
}

kernel_test!(interfaces_that_a_pattern_matches_are_followed, needs INGRESS_INTERFACE);
/// Interfaces appear, are renamed and vanish; the first entry that matches decides.
fn interfaces_that_a_pattern_matches_are_followed() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[(
        "traffic.sidecar.istio.io/excludeInterfaces",
        "net7,net+,net1",
    )])?;
    let maps = fixture.lab.places().maps()?;
    for (change, expected) in [
        ("link add eth8 type veth peer name net", [1].as_slice()),
        ("link add net1 type veth peer name eth9", &[1, 1]),
        ("link set eth8 name net7", &[0, 1, 1]),
        ("link set net1 name ne1", &[0, 1]),
        ("link del net7", &[]),
    ] {
        fixture.pod.ip(change)?;
        eventually(Duration::from_secs(3), || {
            let rows = maps.ifaces.rows()?;
            let mut positions: Vec<u32> = rows.iter().map(|(_, row)| row.position).collect();
            positions.sort_unstable();
            ensure!(positions == expected, "after {change}: {rows:?}");
            Ok(())
        })?;
    }
    Ok(())
}
