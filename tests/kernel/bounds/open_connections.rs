//! Connections that are open take no room in the table of handshakes.

use anyhow::{Result, ensure};
use lab::{
    protocol::{APP, Dial, PROXY},
    sidecar,
};

use super::maps;
use crate::fixture::{POD, PodFixture, VIP, at, original};

kernel_test!(open_connections_have_no_handshake);
fn open_connections_have_no_handshake() -> Result<()> {
    const EACH: usize = 10;
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let mut mapped = Dial::new(&APP, at(VIP[0], 80));
    mapped.mapped = true;
    // From loopback there is no target that names the destination.
    let mut by_row = Dial::new(&PROXY, at(POD[0], 80));
    by_row.source = Some(at("127.0.0.1", 0));
    let dials = [
        (by_row, 15006),
        (Dial::new(&APP, at(VIP[0], 80)), 15001),
        (Dial::new(&APP, at(VIP[1], 80)), 15001),
        (mapped, 15001),
        (Dial::new(&PROXY, at(POD[0], 80)), 15006),
        (Dial::new(&PROXY, at(POD[1], 80)), 15006),
    ];
    for (dial, port) in &dials {
        for _ in 0..EACH {
            let held = fixture.client.hold(dial.clone())?;
            ensure!(
                held.as_ref().is_ok_and(|held| held.accepted_by == *port),
                "to {}: {held:?}",
                dial.destination
            );
        }
    }
    // The sidecar has answered on each, so it has accepted each.
    let maps = maps(&fixture.agent.places)?;
    let rows = maps.handshakes.keys()?.len();
    let count = maps.handshake_count.get(&0)?;
    let by_pod = maps.handshakes_by_pod.rows()?;
    ensure!(
        rows == 0 && count == Some(0),
        "{rows} rows, counted {count:?}"
    );
    ensure!(
        by_pod.len() == 1 && by_pod[0].1 == 0,
        "counted for the pod: {by_pod:?}"
    );
    // They are open, and have the destinations that they were meant for.
    let open = fixture.client.reread_names()?;
    ensure!(open.len() == EACH * dials.len(), "{} are open", open.len());
    for (position, connected) in open.into_iter().enumerate() {
        let dialed = dials[position / EACH].0.destination;
        ensure!(
            connected
                .as_ref()
                .is_ok_and(|connected| original(&connected.server, dialed) == Ok(dialed)),
            "to {dialed}: {connected:?}"
        );
    }
    Ok(())
}
