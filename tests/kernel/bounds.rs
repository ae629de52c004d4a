//! What happens at the limits, and what connections that get nowhere leave behind.

mod counters;
mod destinations;
pub mod full_maps;
mod handshakes;
mod lists;
mod memory;
mod open_connections;
mod quota;
mod records;
mod refusals;
mod stale_destinations;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Places, is},
    command::run,
    network::PodNet,
    node::VIP,
    product::{Maps, Table},
    protocol::{APP, Dial},
    wait::eventually,
};

use crate::fixture::{PodFixture, at};

/// Above the cookie of every namespace there is.
const UNUSED_COOKIE: u64 = 1 << 60;

fn maps(places: &Places) -> Result<Maps> {
    places.maps()
}

/// Waits until no handshake is in flight, and none is counted.
pub fn wait_no_handshakes(maps: &Maps) -> Result<()> {
    eventually(Duration::from_secs(10), || {
        let rows = maps.handshakes.keys()?.len();
        let count = maps.handshake_count.get(&0)?.unwrap_or_default();
        let by_pod: Vec<(u64, u64)> = maps.handshakes_by_pod.rows()?;
        ensure!(
            rows == 0 && count == 0 && by_pod.iter().all(|(_, count)| *count == 0),
            "{rows} rows, counted {count}, by pod {by_pod:?}"
        );
        Ok(())
    })
}

/// Drops or resets what comes to the sidecar's outbound port.
pub fn filter(pod: &PodNet, what: &str, target: &str) -> Result<()> {
    run(&format!(
        "ip netns exec {} iptables -{what} INPUT -p tcp --syn --dport 15001 -j {target}",
        pod.netns
    ))
    .map(drop)
}

fn accepted_by(client: &Actor) -> Result<Result<u16, i32>> {
    let connected = client.dial(Dial::new(&APP, at(VIP, 80)))?;
    Ok(connected.map(|connected| connected.accepted_by))
}

/// Waits until a problem is listed; maps are counted every 5 s, and a full one takes a while on a busy machine.
fn wait_problem(places: &Places, wanted: &str) -> Result<String> {
    eventually(Duration::from_secs(30), || {
        let problems = places.problems()?;
        ensure!(
            problems.contains(wanted),
            "no problem {wanted:?}: {problems}"
        );
        Ok(problems)
    })
}

/// A policy whose connections have handshake rows: their targets do not name the destination.
pub const WITH_HANDSHAKE_ROWS: [(&str, &str); 1] = [(
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "10.0.0.0/8,127.0.0.0/8",
)];

/// Rows that the maps of pods and policies have.
const CAPACITY: u64 = 4096;

/// Fills a map up; how many rows that took.
fn fill(mut insert: impl FnMut(u64) -> std::io::Result<()>) -> Result<u64> {
    let (mut number, mut short_of_memory) = (0, 0);
    loop {
        match insert(number).map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) => number += 1,
            Err((Some(libc::E2BIG | libc::ENOSPC), _)) => return Ok(number),
            // The kernel adds to a map's free memory in the background.
            Err((Some(libc::ENOMEM), _)) if short_of_memory < 1000 => {
                short_of_memory += 1;
                thread::sleep(Duration::from_millis(1));
            }
            Err((_, error)) => return Err(error).context("fill a map"),
        }
    }
}

/// Adds a row, unless it is there.
fn add<K: bytemuck::Pod, V: bytemuck::Pod>(
    map: &Table<K, V>,
    key: &K,
    value: &V,
) -> std::io::Result<()> {
    match map.get(key)? {
        Some(_) => Ok(()),
        None => map.insert(key, value),
    }
}

/// Keeps a map full while something is tried: the agent removes pods that it did not enroll. `test`
/// is given what makes room. `insert` leaves rows alone that are there: one that is being replaced
/// may not be counted.
fn while_full(
    insert: impl Fn(u64) -> std::io::Result<()> + Sync,
    remove: impl Fn() -> Result<()>,
    test: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let done = AtomicBool::new(false);
    let idle = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Also what came before the room that there was.
                for number in 0..CAPACITY {
                    if insert(number).is_err() {
                        break;
                    }
                }
                thread::sleep(Duration::from_micros(200));
            }
            idle.store(true, Ordering::Relaxed);
        });
        let tested = test(&|| {
            done.store(true, Ordering::Relaxed);
            while !idle.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            remove()
        });
        done.store(true, Ordering::Relaxed);
        tested
    })
}

/// Enrolls a second pod, expects it to be refused for a reason that says this, and to be enrolled when
/// `make_room` has made room.
fn refused_until(
    fixture: &mut PodFixture,
    annotations: &[(&str, &str)],
    says: &str,
    make_room: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let second = fixture.lab.pod("second", 3)?;
    fixture.lab.write_pod("second", &second, annotations)?;
    let places = &fixture.agent.places;
    places.wait_pod("test/second", is("rejected", says))?;
    let problem = places.problems()?;
    ensure!(problem.contains("pod test/second: "), "{problem}");
    // Pods that are enrolled stay so.
    ensure!(accepted_by(&fixture.client)? == Ok(15001), "the first pod");
    make_room()?;
    places.wait_enrolled("test/second").map(drop)
}
