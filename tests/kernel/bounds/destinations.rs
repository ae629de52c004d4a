//! A pod that connects to more destinations than it may have targets for.

use anyhow::{Result, anyhow, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
};
use sidetrack_common::names::DESTINATION_QUOTA;

use super::maps;
use crate::fixture::{PodFixture, at};

kernel_test!(more_destinations_than_targets);
/// Connections beyond the share are redirected in the slower way, with the same names.
fn more_destinations_than_targets() -> Result<()> {
    const MORE: u16 = 100;
    let share = u16::try_from(DESTINATION_QUOTA)?;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let destinations = (1..=share + MORE).map(|port| at(VIP, 10_000 + port));
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
    let maps = maps(&fixture.agent.places)?;
    let rows = maps.destinations.keys()?.len();
    ensure!(rows == usize::from(share), "{rows} rows");
    ensure!(maps.handshakes.keys()?.is_empty(), "handshakes are over");
    Ok(())
}
