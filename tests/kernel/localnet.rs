//! Pods where `route_localnet` is set, as in most clusters with kube-proxy: 127.0.0.0/8 is then reached from outside, and may
//! leave the pod. Nothing may rest on the kernel's own check of such packets.

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    command::run_words,
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
};
use sidetrack_common::addr::Addr;

use crate::{
    facilities::refusal,
    fixture::{Arrives, POD, PodFixture, VIP, at, check},
};

/// The range of IPv4 targets, dedicated and shared.
const TARGETS: [&str; 2] = ["127.64.0.0/10", "127.128.0.0/10"];

fn sysctl(netns: &str, setting: &str) -> Result<()> {
    run_words(&["ip", "netns", "exec", netns, "sysctl", "-qw", setting]).map(drop)
}

/// An enrolled pod of a node with kube-proxy, and a neighbor that sends it packets for loopback addresses.
fn fixture() -> Result<(PodFixture, Actor)> {
    let fixture = PodFixture::new()?;
    let sidecar = sidecar::start(&fixture.pod, &[80])?;
    let outside = fixture.lab.outside();
    for netns in [&fixture.pod.netns, &outside.netns] {
        for which in ["all", "default"] {
            sysctl(netns, &format!("net.ipv4.conf.{which}.route_localnet=1"))?;
        }
    }
    outside.ip("route del local 127.0.0.0/8 dev lo table local")?;
    for range in TARGETS {
        outside.ip(&format!("route add {range} via {}", POD[0]))?;
    }
    fixture.enroll(&[])?;
    Ok((fixture, sidecar))
}

kernel_test!(packets_from_outside_for_targets_are_refused);
fn packets_from_outside_for_targets_are_refused() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP[0], 80)))?;
    let held = held.map_err(|errno| anyhow!("errno {errno}"))?;
    ensure!(held.accepted_by == 15001, "{held:?}");
    let rows = fixture.agent.places.maps()?.destinations.keys()?;
    let target = rows.first().context("a row")?.target_be[1];
    let target = Addr::from_v4_be(target).to_string();
    for to in [&target, "127.64.0.7", "127.128.0.7"] {
        for port in [15001, 15006, 80] {
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
    // The pod's own are as ever.
    let to = at(VIP[0], 80);
    check(&fixture.dial(to)?, Arrives::Sidecar(15001), POD[0], to)?;
    let inbound = fixture.outside.connect(&ROOT, at(POD[0], 80))?;
    ensure!(inbound.accepted_by == 15006, "{inbound:?}");
    Ok(())
}

kernel_test!(an_address_of_the_range_that_the_pod_has_is_no_target);
fn an_address_of_the_range_that_the_pod_has_is_no_target() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    let own = "127.93.0.9";
    fixture.pod.ip(&format!("addr add {own}/32 dev eth0"))?;
    fixture.wait("both ends see it as the pod's", || {
        let inside = fixture.dial(at(own, 80))?;
        let inbound = fixture.outside.dial(Dial::new(&ROOT, at(own, 80)))?;
        Ok(inside.is_ok_and(|it| it.accepted_by == 80)
            && inbound.is_ok_and(|it| it.accepted_by == 15006))
    })?;
    let to = at(VIP[0], 80);
    check(&fixture.dial(to)?, Arrives::Sidecar(15001), POD[0], to)
}

kernel_test!(a_loopback_source_does_not_leave_the_pod);
/// Where `route_localnet` is not set, the kernel fails such a connect with the same error.
fn a_loopback_source_does_not_leave_the_pod() -> Result<()> {
    let (fixture, _sidecar) = fixture()?;
    for source in ["127.0.0.1", "127.0.0.6"] {
        let mut dial = Dial::new(&APP, at(VIP[0], 80));
        dial.source = Some(at(source, 0));
        let result = fixture.client.dial(dial)?;
        ensure!(
            result == Err(refusal(libc::EINVAL)),
            "from {source}: {result:?}"
        );
    }
    let rules = fixture
        .agent
        .places
        .json(&["rules", "test/app", "-o", "json"])?;
    ensure!(rules.to_string().contains("loopback-source"), "{rules}");
    // The proxy's own is the kernel's to decide.
    let mut dial = Dial::new(&PROXY, at(POD[0], 80));
    dial.source = Some(at("127.0.0.6", 0));
    let result = fixture.client.dial(dial)?;
    ensure!(
        result.as_ref().is_ok_and(|it| it.accepted_by == 80),
        "{result:?}"
    );
    Ok(())
}
