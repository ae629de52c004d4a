//! A pod that connects to more destinations than it may have targets for.

use std::{ops::Range, time::Duration};

use anyhow::{Result, anyhow, ensure};
use lab::{
    node::VIP,
    product::Maps,
    protocol::{APP, Dial},
    sidecar,
    wait::eventually,
};
use sidetrack_common::names::{DESTINATION_POOL, DESTINATION_QUOTA, POOL_IN_USE};

use super::maps;
use crate::fixture::{PodFixture, at};

/// How often the agent corrects the count is a part of this.
const SOON: Duration = Duration::from_secs(10);

kernel_test!(more_destinations_than_targets);
/// A pod has its quota, and more from the pool. Connections beyond both are redirected in the slower way, with the same
/// names.
fn more_destinations_than_targets() -> Result<()> {
    const MORE: u16 = 100;
    let quota = u16::try_from(DESTINATION_QUOTA)?;
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let other = fixture.lab.pod("other", 3)?;
    fixture.lab.enroll("other", &other, &[])?;
    let places = &fixture.agent.places;
    let (own, others) = (places.cookie("test/app")?, places.cookie("test/other")?);
    let maps = maps(&fixture.agent.places)?;

    // Another pod has the whole pool.
    let counts = &maps.destinations_by_pod;
    counts.insert(&others, &(DESTINATION_QUOTA + DESTINATION_POOL))?;
    wait_pool(&maps, Some(DESTINATION_POOL))?;
    dial_ports(&fixture, 0..quota + MORE)?;
    ensure!(rows(&maps, own)? == DESTINATION_QUOTA);

    // It leaves the pool to others.
    counts.insert(&others, &DESTINATION_QUOTA)?;
    wait_pool(&maps, None)?;
    dial_ports(&fixture, quota..quota + MORE)?;
    ensure!(rows(&maps, own)? == DESTINATION_QUOTA + u64::from(MORE));
    ensure!(counts.get(&own)? == Some(DESTINATION_QUOTA + u64::from(MORE)));
    ensure!(counts.get(&POOL_IN_USE)? == Some(MORE.into()));
    ensure!(maps.handshakes.keys()?.is_empty(), "handshakes are over");

    // What connect has not counted, or counted twice, the agent finds out.
    counts.insert(&POOL_IN_USE, &DESTINATION_POOL)?;
    wait_pool(&maps, Some(MORE.into()))
}

fn wait_pool(maps: &Maps, wanted: Option<u64>) -> Result<()> {
    eventually(SOON, || {
        let counted = maps.destinations_by_pod.get(&POOL_IN_USE)?;
        ensure!(counted == wanted, "{counted:?}, not {wanted:?}");
        Ok(())
    })
}

/// Connects to so many ports of one address, each a destination of its own.
fn dial_ports(fixture: &PodFixture, ports: Range<u16>) -> Result<()> {
    let destinations = ports.map(|port| at(VIP, 10_000 + port));
    let dials = destinations.clone().map(|to| Dial::new(&APP, to)).collect();
    let results = fixture.client.dial_all(dials)?;
    for (to, result) in destinations.zip(results) {
        let connected = result.map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(connected.client.peer == to, "{connected:?}");
        ensure!(connected.server.original_v4 == Ok(to), "{connected:?}");
        ensure!(
            connected.server.peer == connected.client.local,
            "{connected:?}"
        );
    }
    Ok(())
}

/// Rows of a pod.
fn rows(maps: &Maps, netns: u64) -> Result<u64> {
    let keys = maps.destinations.keys()?;
    Ok(keys.iter().filter(|key| key.netns == netns).count() as u64)
}
