//! One pod has its quota of the handshakes, not more.

use anyhow::{Context as _, Result, ensure};
use lab::{agent::Agent, network::Lab, node::VIP, sidecar};
use sidetrack_common::names::{
    HANDSHAKE_GUARANTEE, HANDSHAKE_POOL, HANDSHAKE_QUOTA, HANDSHAKE_RESERVE, HANDSHAKE_TRANSLATED,
};

use super::{WITH_HANDSHAKE_ROWS, accepted_by, filter, maps, wait_no_handshakes, wait_problem};
use crate::fixture::at;

kernel_test!(one_pod_has_its_quota_of_handshakes);
fn one_pod_has_its_quota_of_handshakes() -> Result<()> {
    const MORE: usize = 500;
    let quota = HANDSHAKE_QUOTA as usize;
    let mut lab = Lab::new()?;
    let hostile = lab.pod("hostile", 2)?;
    let other = lab.pod("other", 3)?;
    for (name, pod) in [("hostile", &hostile), ("other", &other)] {
        lab.write_pod(name, pod, &WITH_HANDSHAKE_ROWS)?;
    }
    let agent = Agent::start(lab.places())?;
    let maps = maps(lab.places())?;
    for name in ["test/hostile", "test/other"] {
        agent.places.wait_enrolled(name)?;
    }
    let _sidecars = [sidecar::start(&hostile, &[])?, sidecar::start(&other, &[])?];
    filter(&hostile, "A", "DROP")?;
    let flooder = hostile.actor()?;
    let flooded = flooder.flood(at(VIP, 80), quota + MORE)?;
    ensure!(
        flooded.pending == quota && flooded.refused == MORE,
        "{flooded:?} of {}",
        quota + MORE
    );
    // Connections of the other pods continue.
    let client = other.actor()?;
    for _ in 0..20 {
        ensure!(accepted_by(&client)? == Ok(15001), "the other pod");
    }
    // The problem is listed, with the pod's name.
    let problem = wait_problem(&agent.places, "connections wait for its sidecar")?;
    ensure!(problem.contains("pod test/hostile: 8192"), "{problem}");
    // A successor finds the counts right.
    drop(agent);
    let agent = Agent::start(lab.places())?;
    let cookie = agent.places.cookie("test/hostile")?;
    let counted = maps.handshakes_by_pod.get(&cookie)?;
    ensure!(counted == Some(quota as u64), "{counted:?}");
    // A count that is far off is corrected.
    drop(agent);
    for wrong in [60_000, 5000_u64.wrapping_neg()] {
        maps.handshakes_by_pod.insert(&cookie, &wrong)?;
        let agent = Agent::start(lab.places())?;
        let counted = maps.handshakes_by_pod.get(&cookie)?;
        ensure!(counted == Some(quota as u64), "{wrong} became {counted:?}");
        drop(agent);
    }
    drop(flooder);
    wait_no_handshakes(&maps)?;
    filter(&hostile, "D", "DROP")?;
    ensure!(
        accepted_by(&hostile.actor()?)? == Ok(15001),
        "once it has ended"
    );
    // The pod takes its count with it.
    let agent = Agent::start(lab.places())?;
    lab.remove_manifest("hostile")?;
    agent.places.wait_rows("HANDSHAKES_BY_POD", 1)
}

kernel_test!(every_pod_has_its_guaranteed_handshakes);
/// Pods whose sidecars hang use the whole pool.
fn every_pod_has_its_guaranteed_handshakes() -> Result<()> {
    let (quota, guarantee) = (HANDSHAKE_QUOTA as usize, HANDSHAKE_GUARANTEE as usize);
    let room = (HANDSHAKE_POOL - HANDSHAKE_TRANSLATED - HANDSHAKE_RESERVE) as usize;
    let mut lab = Lab::new()?;
    let agent = Agent::start(lab.places())?;
    let mut started = Vec::new();
    for number in 0..=room.div_ceil(quota) as u8 {
        let name = format!("pod{number}");
        let pod = lab.pod(&name, 2 + number)?;
        lab.write_pod(&name, &pod, &WITH_HANDSHAKE_ROWS)?;
        agent.places.wait_enrolled(&format!("test/{name}"))?;
        started.push((sidecar::start(&pod, &[])?, pod.actor()?, pod));
    }
    let maps = maps(lab.places())?;
    let (_sidecar, client, healthy) = started.pop().context("a pod")?;
    let mut begun = 0;
    for (_, flooder, pod) in &started {
        filter(pod, "A", "DROP")?;
        let flooded = flooder.flood(at(VIP, 80), quota)?;
        begun += flooded.pending;
        ensure!(flooded.pending + flooded.refused == quota, "{flooded:?}");
    }
    ensure!(begun == room, "{begun} of {room}");
    // Connections of a healthy pod continue.
    for _ in 0..50 {
        ensure!(accepted_by(&client)? == Ok(15001), "the healthy pod");
    }
    // One that hangs has its guarantee then, not more.
    filter(&healthy, "A", "DROP")?;
    let flooder = healthy.actor()?;
    let flooded = flooder.flood(at(VIP, 80), 2 * guarantee)?;
    ensure!(
        flooded.pending == guarantee && flooded.refused == guarantee,
        "{flooded:?}"
    );
    drop((flooder, started));
    wait_no_handshakes(&maps)
}

kernel_test!(connections_that_were_deferred_have_the_same_quota);
/// connect saw none of the others' handshakes, because no SYN had been sent.
fn connections_that_were_deferred_have_the_same_quota() -> Result<()> {
    const MORE: usize = 2000;
    const SLACK: u64 = 256;
    let quota = HANDSHAKE_QUOTA as usize;
    let mut lab = Lab::new()?;
    let hostile = lab.pod("hostile", 2)?;
    lab.write_pod("hostile", &hostile, &WITH_HANDSHAKE_ROWS)?;
    let agent = Agent::start(lab.places())?;
    let maps = maps(lab.places())?;
    agent.places.wait_enrolled("test/hostile")?;
    let _sidecar = sidecar::start(&hostile, &[])?;
    filter(&hostile, "A", "DROP")?;
    let flooder = hostile.actor()?;
    let flooded = flooder.flood_deferred(at(VIP, 80), quota + MORE)?;
    ensure!(flooded.pending == quota + MORE, "{flooded:?}");
    let rows = maps.handshakes.keys()?.len() as u64;
    ensure!(
        (quota as u64..=quota as u64 + SLACK).contains(&rows),
        "{rows} rows"
    );
    drop(flooder);
    wait_no_handshakes(&maps)
}
