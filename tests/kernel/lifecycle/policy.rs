//! A policy changes, or the pod leaves, while connections are open.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};

use crate::fixture::{PodFixture, at, nothing_remains};

kernel_test!(leaving_keeps_established_connections);
fn leaving_keeps_established_connections() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(
        held.is_ok_and(|held| held.accepted_by == 15001),
        "the first is redirected"
    );
    let names = fixture.client.reread_names()?;
    fixture.lab.remove_manifest("app")?;
    fixture.wait_accepted_by(80)?;
    ensure!(
        fixture.client.echo()? == 1,
        "the established connection continues"
    );
    // Longer than it takes until what is out of use is removed.
    thread::sleep(Duration::from_secs(5));
    let now = fixture.client.reread_names()?;
    ensure!(now == names, "{names:?} became {now:?}");
    let destinations = || fixture.agent.places.map("DESTINATIONS");
    ensure!(destinations()?.len() == 1, "{:?}", destinations()?);
    let again = fixture.pod.actor()?;
    drop(std::mem::replace(&mut fixture.client, again));
    nothing_remains(&fixture.agent.places)
}

kernel_test!(policy_changes_apply_to_new_connections);
fn policy_changes_apply_to_new_connections() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    ensure!(held.is_ok_and(|held| held.accepted_by == 15001));
    const INCLUDE: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
    const EXCLUDE: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
    let policies: [(&[_], u16); 3] = [
        (&[(INCLUDE, "192.0.2.0/24")], 80),
        (&[(INCLUDE, "10.109.0.0/16")], 15001),
        (
            &[(INCLUDE, "10.109.0.0/16"), (EXCLUDE, "10.109.118.0/24")],
            80,
        ),
    ];
    for (annotations, by) in policies {
        fixture.enroll(annotations)?;
        let accepted_by = fixture.accepted_by()?;
        ensure!(accepted_by == by, "{annotations:?}: {accepted_by}");
    }
    ensure!(
        fixture.client.echo()? == 1,
        "the established connection continues"
    );
    // Inbound by list.
    fixture.enroll(&[("traffic.sidecar.istio.io/includeInboundPorts", "8080")])?;
    eventually(Duration::from_secs(1), || {
        let inbound = fixture
            .outside
            .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
        ensure!(
            inbound
                .as_ref()
                .is_ok_and(|inbound| inbound.accepted_by == 80),
            "80 is not listed: {inbound:?}"
        );
        Ok(())
    })?;
    let inbound = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 8080)))?;
    ensure!(
        inbound.is_ok_and(|inbound| inbound.accepted_by == 15006),
        "8080 is listed"
    );
    Ok(())
}
