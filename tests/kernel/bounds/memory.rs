//! What the maps take: memory for what they have, and not for what they could have.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Places, node::VIP, sidecar, wait::eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{WITH_HANDSHAKE_ROWS, filter};
use crate::fixture::{PodFixture, at};

/// All maps of a node with few pods. They were 24 MiB once.
const MAX_BYTES: u64 = 16_000_000;

fn cost(places: &Places) -> Result<Value> {
    places.json(&["cost", "--interval", "100ms", "-o", "json"])
}

fn map<'a>(cost: &'a Value, name: &str) -> Result<&'a Value> {
    let maps = cost["maps"].as_array().context("maps")?;
    let found = maps.iter().find(|map| map["map"] == name);
    found.with_context(|| format!("no {name} in {cost}"))
}

kernel_test!(maps_take_memory_for_what_they_have);
fn maps_take_memory_for_what_they_have() -> Result<()> {
    const CONNECTIONS: usize = 50;
    let mut fixture = PodFixture::new()?;
    let places = fixture.agent.places.clone();
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&WITH_HANDSHAKE_ROWS)?;
    ensure!(fixture.accepted_by()? == 15001);
    filter(&fixture.pod, "A", "DROP")?;
    let client = fixture.pod.actor()?;
    let of_rows = |least: u64, most: u64| {
        // Maps are read every 5 s.
        eventually(Duration::from_secs(12), || {
            let cost = cost(&places)?;
            let rows = map(&cost, "HANDSHAKES")?["row_bytes"].as_u64();
            let rows = rows.context("a number")?;
            ensure!((least..=most).contains(&rows), "{rows} bytes: {cost}");
            Ok(cost)
        })
    };
    let at_rest = cost(&places)?;
    if at_rest["maps_exact"] == false {
        eprintln!(
            "bounds::maps_take_memory_for_what_they_have: skipped, needs the kernel's word on maps (6.4)"
        );
        return Ok(());
    }
    let sum = |cost: &Value| -> Option<u64> {
        let maps = cost["maps"].as_array()?.iter();
        maps.map(|map| map["bytes"].as_u64()).sum()
    };
    let at_rest = of_rows(0, 0)?;
    let all = sum(&at_rest).context("bytes")?;
    ensure!(all < MAX_BYTES, "{all} bytes: {at_rest}");
    let agent = &at_rest["agent"];
    ensure!(at_rest["enrolled"] == 1, "{at_rest}");
    ensure!(agent["resident_bytes"].as_u64() > Some(1 << 20), "{agent}");
    ensure!(at_rest["processors"].as_f64() >= Some(0.0), "{at_rest}");
    let flooded = client.flood(at(VIP, 80), CONNECTIONS)?;
    ensure!(flooded.pending == CONNECTIONS, "{flooded:?}");
    of_rows(CONNECTIONS as u64 * 100, CONNECTIONS as u64 * 1000)?;
    drop(client);
    of_rows(0, 0)?;
    let metrics = places.output(&["cost", "-o", "wide"])?;
    let text = String::from_utf8(metrics.stdout)?;
    // docs/operations.md shows it.
    println!("{text}");
    ensure!(text.contains("rows of 1 enrolled pod: "), "{text}");
    ensure!(
        text.contains("\nHANDSHAKES ") && text.contains("65536"),
        "{text}"
    );
    fixture.agent.end(Signal::SIGKILL)?;
    let pinned = places.output(&["cost"])?;
    let said = String::from_utf8(pinned.stderr)?;
    ensure!(
        pinned.status.success() && said.contains("these maps are pinned"),
        "{said}"
    );
    Ok(())
}
