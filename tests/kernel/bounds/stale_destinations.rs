//! A pod whose address changes again and again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    node::VIP,
    protocol::{APP, Connected, Dial},
    sidecar,
    wait::eventually,
};
use sidetrack_common::{
    addr::Addr,
    conn::Destination,
    names::{DESTINATION_POOL, DESTINATION_QUOTA},
    target::DEDICATED_ATTEMPTS,
};

use super::maps;
use crate::fixture::{PodFixture, at, ip};

/// A row is removed ten seconds after its address at the earliest.
const SOON: Duration = Duration::from_secs(30);

kernel_test!(destinations_follow_the_address);
/// Rows with addresses that the pod no longer has leave their targets to others, but for those of open connections.
fn destinations_follow_the_address() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    let held = held.ok().context("the first connection")?;
    // More addresses than a destination has targets.
    let addresses = 3..4 + u8::try_from(DEDICATED_ATTEMPTS)?;
    for last in addresses.clone() {
        change_address(&fixture, &own(last - 1), &own(last))?;
        dial_from(&fixture, &own(last))?;
    }
    let maps = maps(&fixture.agent.places)?;
    let without_target = || {
        let counts = maps.handshakes_by_reason()?;
        let many = counts
            .iter()
            .find(|(reason, _)| *reason == "many-destinations");
        many.map(|(_, count)| *count).context("the reason")
    };
    let before = without_target()?;
    ensure!(before > 0, "the last ones had no target");
    let rows = || -> Result<Vec<Destination>> {
        let rows = maps.destinations.rows()?.into_iter();
        Ok(rows.map(|(_, row)| row.destination).collect())
    };
    eventually(SOON, || {
        let rows = rows()?;
        ensure!(rows.len() == 1, "{rows:?}");
        Ok(())
    })?;
    // What is left is the open connection's, which has its names.
    keeps_its_names(&fixture, &held)?;
    let last = own(addresses.end - 1);
    dial_from(&fixture, &last)?;
    ensure!(without_target()? == before, "it has a target now");
    let rows = rows()?;
    let current = Addr::from(ip(&last));
    ensure!(
        rows.len() == 2 && rows.iter().any(|row| row.source.is(current)),
        "{rows:?}"
    );
    let cookie = fixture.agent.places.cookie("test/app")?;
    ensure!(maps.destinations_by_pod.get(&cookie)? == Some(2));
    // The pod has its first address again: connections have its row.
    change_address(&fixture, &last, &own(2))?;
    let first = Addr::from(ip(&own(2)));
    eventually(SOON, || {
        let rows = maps.destinations.rows()?;
        let is_fresh = |row: &Destination| row.source.is(first) && row.retired == 0;
        let fresh = rows.iter().filter(|(_, row)| is_fresh(&row.destination));
        ensure!(rows.len() == 1 && fresh.count() == 1, "{rows:?}");
        Ok(())
    })
}

kernel_test!(a_short_pool_gets_back_what_no_socket_needs);
/// A pod that connects to ever more destinations does not keep the pool from others as long as it lives. It has to give
/// back what it has beyond its share.
fn a_short_pool_gets_back_what_no_socket_needs() -> Result<()> {
    // One more than three quarters, which are a pod's share if no other uses the pool.
    const COUNT: u64 = DESTINATION_QUOTA + DESTINATION_POOL / 4 * 3 + 1;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let held = fixture.client.hold(Dial::new(&APP, at(VIP, 80)))?;
    let held = held.ok().context("the first connection")?;
    for port in 81..84 {
        fixture.client.connect(&APP, at(VIP, port))?;
    }
    let maps = maps(&fixture.agent.places)?;
    let cookie = fixture.agent.places.cookie("test/app")?;
    ensure!(maps.destinations_by_pod.get(&cookie)? == Some(4));
    // As if it had so many.
    maps.destinations_by_pod.insert(&cookie, &COUNT)?;
    let rows = || -> Result<Vec<Destination>> {
        let rows = maps.destinations.rows()?.into_iter();
        Ok(rows.map(|(_, row)| row.destination).collect())
    };
    eventually(SOON, || {
        let rows = rows()?;
        let retired: Vec<_> = rows.iter().filter(|row| row.retired != 0).collect();
        ensure!(rows.len() == 4 && retired.len() == 1, "{rows:?}");
        ensure!(retired[0].dialed_port != 80, "{rows:?}");
        Ok(())
    })?;
    eventually(SOON, || {
        let rows = rows()?;
        ensure!(rows.len() == 3, "{rows:?}");
        ensure!(maps.destinations_by_pod.get(&cookie)? == Some(COUNT - 1));
        Ok(())
    })?;
    keeps_its_names(&fixture, &held)?;
    // The destination gets another row when it is needed again.
    for port in 81..84 {
        let again = fixture.client.connect(&APP, at(VIP, port))?;
        ensure!(again.server.original_v4 == Ok(at(VIP, port)), "{again:?}");
    }
    let rows = rows()?;
    let kept = rows.iter().all(|row| row.retired == 0);
    ensure!(rows.len() == 4 && kept, "{rows:?}");
    Ok(())
}

/// Checks the connection to port 80 that the client holds.
fn keeps_its_names(fixture: &PodFixture, held: &Connected) -> Result<()> {
    let again = fixture.client.reread_names()?;
    let again = again.first().context("the connection")?;
    let again = again.as_ref().ok().context("its names")?;
    ensure!(again.client == held.client, "{again:?}, not {held:?}");
    ensure!(again.server.original_v4 == Ok(at(VIP, 80)), "{again:?}");
    Ok(())
}

fn own(last: u8) -> String {
    format!("10.77.0.{last}")
}

fn change_address(fixture: &PodFixture, old: &str, new: &str) -> Result<()> {
    let route = fixture.pod.ip("route show default")?;
    fixture.pod.ip(&format!("address del {old}/16 dev eth0"))?;
    fixture.pod.ip(&format!("address add {new}/16 dev eth0"))?;
    fixture.pod.ip(&format!("route add {}", route.trim()))?;
    Ok(())
}

/// Connects until the connection has this source: the agent reads it a few milliseconds later.
fn dial_from(fixture: &PodFixture, source: &str) -> Result<Connected> {
    eventually(Duration::from_secs(2), || {
        let connected = fixture.client.connect(&APP, at(VIP, 80))?;
        ensure!(connected.accepted_by == 15001, "{connected:?}");
        ensure!(connected.client.local.ip() == ip(source), "{connected:?}");
        Ok(connected)
    })
}
