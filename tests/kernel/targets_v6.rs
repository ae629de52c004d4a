//! Dedicated targets of IPv6: addresses that are local in the pod by a route of the agent's, and that nothing but a
//! redirect leads to.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};

use sidetrack_common::{addr::Addr, target::DEDICATED_V6};

use crate::fixture::{Arrives, POD, PodFixture, VIP, at, check, nothing_remains};

/// The prefix of the targets, and an address of it that names nothing.
const PREFIX: &str = "100:0:0:1::/64";
const NOWHERE: &str = "100:0:0:1::7";

/// An enrolled pod, and a service outside that has an IPv6 address.
fn fixture() -> Result<(PodFixture, lab::actor::Actor)> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    Ok((fixture, sidecar))
}

/// A redirected connection, by a target or without one.
fn is_redirected(fixture: &PodFixture) -> Result<()> {
    let to = at(VIP[1], 80);
    check(&fixture.dial(to)?, Arrives::Sidecar(15001), POD[1], to)
}

fn has_route(fixture: &PodFixture) -> Result<bool> {
    let routes = fixture.pod.ip("-6 route show table local")?;
    Ok(routes.contains(&format!("local {PREFIX} dev lo proto 175 src ::1")))
}

kernel_test!(a_connection_has_a_target_and_no_handshake, needs INGRESS_INTERFACE);
fn a_connection_has_a_target_and_no_handshake() -> Result<()> {
    let (mut fixture, _sidecar) = fixture()?;
    ensure!(has_route(&fixture)?);
    let to = at(VIP[1], 80);
    let held = fixture.client.hold(Dial::new(&APP, to))?;
    check(&held, Arrives::Sidecar(15001), POD[1], to)?;
    let maps = fixture.agent.places.maps()?;
    ensure!(maps.destinations.keys()?.len() == 1);
    ensure!(maps.handshakes.keys()?.is_empty());
    ensure!(maps.handshakes_by_pod.keys()?.is_empty(), "it needed none");
    // The connection continues when the pod is no longer enrolled, with its names. Nothing remains after it.
    fixture.lab.release("app")?;
    thread::sleep(Duration::from_secs(4));
    let held = fixture.client.reread_names()?;
    let held = held.first().context("the connection")?;
    check(held, Arrives::Sidecar(15001), POD[1], to)?;
    let again = fixture.pod.actor()?;
    drop(std::mem::replace(&mut fixture.client, again));
    fixture.wait("the route is gone", || Ok(!has_route(&fixture)?))?;
    nothing_remains(&fixture.agent.places)
}

kernel_test!(packets_from_outside_are_refused, needs INGRESS_INTERFACE);
/// A neighbor sends to a target that names a destination, and to one that names nothing.
fn packets_from_outside_are_refused() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP[1], 80)))?;
    let held = held.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(held.accepted_by == 15001, "{held:?}");
    let rows = fixture.agent.places.maps()?.destinations.keys()?;
    let [third, last] = rows.first().context("a row")?.target_be;
    let [first, second, ..] = DEDICATED_V6.0.to_v6_be();
    let target = Addr::from_v6_be([first, second, third, last]);
    let outside = fixture.lab.outside();
    outside.ip(&format!("-6 route add {PREFIX} via {}", POD[1]))?;
    for to in [&target.to_string(), NOWHERE] {
        for port in [15001, 15006, 80, 15021] {
            let result = fixture.outside.dial(Dial::new(&ROOT, at(to, port)))?;
            ensure!(
                result == Err(libc::ECONNREFUSED),
                "{to} port {port}: {result:?}"
            );
        }
    }
    let why = fixture.agent.places.output(&["why", "test/app"])?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(why.contains("unknown-target"), "{why}");
    // What the application sends there stays in its pod.
    let inside = fixture.client.connect(&APP, at(NOWHERE, 80))?;
    ensure!(inside.accepted_by == 80, "{inside:?}");
    is_redirected(&fixture)
}

kernel_test!(a_route_that_the_pod_removes_comes_back, needs INGRESS_INTERFACE);
/// Nothing passes the sidecar meanwhile: what is sent to a target leads to no service.
fn a_route_that_the_pod_removes_comes_back() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    is_redirected(&fixture)?;
    fixture
        .pod
        .ip(&format!("-6 route del local {PREFIX} dev lo table local"))?;
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(2) {
        match fixture.dial(at(VIP[1], 80))? {
            Ok(connected) => ensure!(connected.accepted_by == 15001, "{connected:?}"),
            Err(errno) => ensure!(
                [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ETIMEDOUT].contains(&errno),
                "errno {errno}"
            ),
        }
    }
    fixture.wait("the route is back", || has_route(&fixture))?;
    is_redirected(&fixture)
}

kernel_test!(ipv6_may_be_disabled_and_enabled_again, needs INGRESS_INTERFACE);
fn ipv6_may_be_disabled_and_enabled_again() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    is_redirected(&fixture)?;
    let set = |value: &str| {
        lab::command::run_words(&[
            "ip",
            "netns",
            "exec",
            &fixture.pod.netns,
            "sysctl",
            "-qw",
            &format!("net.ipv6.conf.lo.disable_ipv6={value}"),
        ])
    };
    set("1")?;
    fixture.wait("connections are made without a target", || {
        // ::1 is gone as well: they fail.
        Ok(fixture.dial(at(VIP[1], 80))?.is_err())
    })?;
    set("0")?;
    fixture.wait("the route is back", || has_route(&fixture))?;
    is_redirected(&fixture)
}

kernel_test!(a_pod_that_has_the_prefix_keeps_it, needs INGRESS_INTERFACE);
/// Its connections are redirected without targets.
fn a_pod_that_has_the_prefix_keeps_it() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let own = "100:0:0:1::9";
    fixture
        .pod
        .ip(&format!("addr add {own}/128 dev eth0 nodad"))?;
    fixture.enroll(&[])?;
    ensure!(!has_route(&fixture)?);
    is_redirected(&fixture)?;
    ensure!(fixture.agent.places.maps()?.destinations.keys()?.is_empty());
    let outside = fixture.lab.outside();
    outside.ip(&format!("-6 route add {own}/128 via {}", POD[1]))?;
    let to = at(own, 80);
    let inbound = fixture.outside.dial(Dial::new(&ROOT, to))?;
    let inbound = inbound.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(
        inbound.accepted_by == 15006 && inbound.server.original_v6 == Ok(to),
        "{inbound:?}"
    );
    // An address that is added later ends the targets.
    fixture.pod.ip(&format!("addr del {own}/128 dev eth0"))?;
    fixture.wait("the route is there", || has_route(&fixture))?;
    fixture
        .pod
        .ip(&format!("addr add {own}/128 dev eth0 nodad"))?;
    fixture.wait("inbound connections reach the address", || {
        let inbound = fixture.outside.dial(Dial::new(&ROOT, to))?;
        Ok(inbound.is_ok_and(|inbound| inbound.accepted_by == 15006))
    })?;
    is_redirected(&fixture)
}

kernel_test!(connections_without_a_target_are_counted_by_the_reason, needs INGRESS_INTERFACE);
fn connections_without_a_target_are_counted_by_the_reason() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    let counts = || -> Result<BTreeMap<&str, u64>> {
        let counts = fixture.agent.places.maps()?.handshakes_by_reason()?;
        Ok(counts.into_iter().filter(|(_, count)| *count > 0).collect())
    };
    for family in [0, 1] {
        let connected = fixture.client.connect(&APP, at(VIP[family], 80))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
    }
    ensure!(counts()?.is_empty(), "{:?}", counts()?);
    for family in [0, 1] {
        let connected = fixture.client.connect(&PROXY, at(POD[family], 80))?;
        ensure!(connected.accepted_by == 15006, "{connected:?}");
    }
    let mut bound = Dial::new(&APP, at(VIP[1], 80));
    bound.source = Some(at("::1", 0));
    let connected = fixture.client.dial(bound)?;
    ensure!(connected.is_ok_and(|it| it.accepted_by == 15001));
    let wanted = BTreeMap::from([("loopback-source", 1)]);
    ensure!(counts()? == wanted, "{:?}", counts()?);
    // Where the rules capture loopback addresses as well.
    fixture.enroll(&[(
        "traffic.sidecar.istio.io/includeOutboundIPRanges",
        "127.0.0.0/8,fd99::/64",
    )])?;
    is_redirected(&fixture)?;
    ensure!(counts()?.get("no-targets") == Some(&1), "{:?}", counts()?);
    Ok(())
}

kernel_test!(a_renamed_lo_is_lo_all_the_same, needs INGRESS_INTERFACE);
/// Its name is the pod's to change.
fn a_renamed_lo_is_lo_all_the_same() -> Result<()> {
    let fixture = PodFixture::new()?;
    for change in [
        "link set lo down",
        "link set lo name own",
        "link set own up",
    ] {
        fixture.pod.ip(change)?;
    }
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    is_redirected(&fixture)?;
    let has = |what: &str, text: &str| -> Result<bool> { Ok(fixture.pod.ip(what)?.contains(text)) };
    let address = || has("-6 address show dev own", "::6/128");
    let route = || has("-6 route show table local", "dev own proto 175");
    ensure!(address()? && route()?);
    fixture.lab.release("app")?;
    fixture.wait("both are gone", || Ok(!address()? && !route()?))?;
    nothing_remains(&fixture.agent.places)
}
