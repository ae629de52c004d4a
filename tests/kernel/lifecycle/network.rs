//! A pod's namespace, addresses and address families change.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, process::Command, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    agent::{Agent, is},
    command::run,
    network::{Lab, Manifest},
    node::VIP,
    protocol::PROXY,
    sidecar,
    wait::eventually,
};

use crate::fixture::{Arrives, PodFixture, at, check};

kernel_test!(a_replaced_namespace_is_followed);
fn a_replaced_namespace_is_followed() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let before = fixture.agent.places.cookie("test/app")?;
    // The sandbox goes and another of the same name comes.
    let name = fixture.pod.netns.clone();
    fixture.client = fixture.lab.outside().actor()?;
    run(&format!("ip netns del {name}"))?;
    fixture
        .agent
        .places
        .wait_pod("test/app", is("waiting", ""))?;
    run(&format!("ip netns add {name}"))?;
    run(&format!("ip -n {name} link set lo up"))?;
    fixture.agent.places.wait_enrolled("test/app")?;
    ensure!(
        fixture.agent.places.cookie("test/app")? != before,
        "it is another namespace"
    );
    let rows = fixture.agent.places.map("POD_BY_NETNS")?;
    ensure!(rows.len() == 1, "the old row is gone: {rows:?}");
    Ok(())
}

kernel_test!(addresses_and_routes_are_followed);
fn addresses_and_routes_are_followed() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let new = at("10.79.0.2", 80);
    let before = fixture.dial(new)?;
    ensure!(
        before.is_ok_and(|before| before.accepted_by == 15001),
        "it is off the pod"
    );
    fixture.pod.ip("address add 10.79.0.2/32 dev eth0")?;
    eventually(Duration::from_secs(1), || {
        let result = fixture.dial(new)?;
        ensure!(
            check(&result, Arrives::Untouched, "10.79.0.2", new).is_ok(),
            "{result:?}"
        );
        Ok(())
    })?;
    // Without a route the app gets the kernel's errno at once and the sidecar sees nothing.
    fixture.pod.ip("route del default")?;
    eventually(Duration::from_secs(1), || {
        let result = fixture.dial(at(VIP, 80))?;
        ensure!(result == Err(libc::ENETUNREACH), "{result:?}");
        Ok(())
    })
}

kernel_test!(a_name_of_any_bytes_hides_no_change);
fn a_name_of_any_bytes_hides_no_change() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let own = at("10.79.0.2", 80);
    let reaches = |port: u16| {
        // A connect before the change is followed waits for an answer that does not come.
        eventually(Duration::from_secs(15), || {
            let result = fixture.dial(own)?;
            ensure!(
                result.as_ref().is_ok_and(|it| it.accepted_by == port),
                "{result:?}"
            );
            Ok(())
        })
    };
    fixture.pod.ip("address add 10.79.0.2/32 dev lo")?;
    reaches(80)?;
    // No UTF-8.
    let name = OsStr::from_bytes(b"\xff");
    let set = Command::new("ip")
        .args(["-n", &fixture.pod.netns, "link", "set", "lo", "alias"])
        .arg(name)
        .status()?;
    ensure!(set.success());
    fixture.pod.ip("address del 10.79.0.2/32 dev lo")?;
    reaches(15001)
}

kernel_test!(ipv6_needs_dual_stack_or_an_ipv6_pod);
fn ipv6_needs_dual_stack_or_an_ipv6_pod() -> Result<()> {
    let mut lab = Lab::new()?;
    let pod = lab.pod("app", 2)?;
    let _agent = Agent::start(lab.places())?;
    let single = Manifest::new("app", &pod).dual_stack(false);
    lab.enroll_manifest("app", &single)?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    let client = pod.actor()?;
    // IPv6 is not redirected, and answers as without rules.
    let own = at("fd77::2", 80);
    let proxy = client.connect(&PROXY, own)?;
    ensure!(proxy.accepted_by == 80, "{proxy:?}");
    ensure!(proxy.server.original_v6 == Err(libc::ENOENT), "{proxy:?}");
    ensure!(!pod.ip("-6 address show dev lo")?.contains("::6/128"));
    // With its IPv4 address gone the pod counts as an IPv6 pod.
    lab.release("app")?;
    pod.ip("address del 10.77.0.2/16 dev eth0")?;
    lab.enroll_manifest("app", &single)?;
    ensure!(
        pod.ip("-6 address show dev lo")?.contains("::6/128"),
        "::6 is added"
    );
    let proxy = client.connect(&PROXY, own)?;
    ensure!(proxy.accepted_by == 15006, "{proxy:?}");
    lab.release("app")?;
    let remaining = pod.ip("-6 address show dev lo")?;
    ensure!(
        !remaining.contains("::6/128"),
        "::6 is removed again: {remaining}"
    );
    Ok(())
}
