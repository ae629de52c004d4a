//! One pod has its quota of the counters; what exceeds it is counted by rule.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    network::{Lab, PodNet},
    node::VIP,
    product::Maps,
    protocol::{APP, Dial},
    wait::eventually,
};
use serde_json::Value;
use sidetrack_common::{names::COUNTER_QUOTA, rule::Rule};

use super::{accepted_by, maps};
use crate::fixture::at;

/// Ports that a list names, and that are dialed once each.
const PORTS: std::ops::Range<u16> = 20_000..20_000 + COUNTER_QUOTA as u16 + 2000;

/// Connections of a pod by rule.
fn counted(maps: &Maps, cookie: u64) -> Result<BTreeMap<u32, u64>> {
    let mut by_rule = BTreeMap::new();
    for (key, count) in maps.connection_counts()? {
        if key.netns == cookie {
            *by_rule.entry(key.rule).or_default() += count;
        }
    }
    Ok(by_rule)
}

/// Enrolls a pod with a list of so many ports, and dials each of them.
fn exceed(lab: &Lab, pod: &PodNet) -> Result<()> {
    let list: Vec<String> = PORTS.map(|port| port.to_string()).collect();
    let list = list.join(",");
    let annotations = [(
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        list.as_str(),
    )];
    lab.enroll("large", pod, &annotations)?;
    let client = pod.actor()?;
    for result in client.dial_all(PORTS.map(|port| Dial::new(&APP, at(VIP, port))).collect())? {
        ensure!(result == Err(libc::ECONNREFUSED), "{result:?}");
    }
    Ok(())
}

kernel_test!(a_pod_has_its_quota_of_counters);
fn a_pod_has_its_quota_of_counters() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let (large, other) = (lab.pod("large", 2)?, lab.pod("other", 3)?);
    let agent = Agent::start(lab.places())?;
    lab.enroll("other", &other, &[])?;
    exceed(&lab, &large)?;
    let maps = maps(&agent.places)?;
    let [large_cookie, other_cookie] = [
        agent.places.cookie("test/large")?,
        agent.places.cookie("test/other")?,
    ];
    let check = |maps: &Maps| -> Result<()> {
        let keys = maps.counts.keys()?.into_iter();
        let rows = keys.filter(|key| key.netns == large_cookie).count();
        ensure!(rows == COUNTER_QUOTA as usize, "{rows} rows");
        let by_rule = counted(maps, large_cookie)?;
        let all = by_rule.get(&(Rule::OutPortExcluded as u32)).copied();
        ensure!(
            all == Some(PORTS.len() as u64),
            "each counts once: {by_rule:?}"
        );
        Ok(())
    };
    check(&maps)?;
    // Another agent counts the same.
    drop(agent);
    let agent = Agent::start(lab.places())?;
    agent.places.wait_enrolled("test/large")?;
    check(&maps)?;
    // The pod says so, and so do its rules; the other pod does not.
    for (name, says) in [("test/large", true), ("test/other", false)] {
        let pod = agent.places.pod(name)?.context("the pod")?;
        let noted = pod["notes"]
            .to_string()
            .contains("no room for more counters");
        ensure!(noted == says, "{pod}");
    }
    let rules = agent.places.json(&["rules", "test/large", "-o", "json"])?;
    let rows = rules.as_array().context("rules")?;
    let named = |row: &&Value| row["name"] == "out-port-excluded";
    let any_line = rows
        .iter()
        .filter(named)
        .find(|row| row["scope"] == "any_line");
    // All but the rows that the pod has, of which other rules may have some.
    let least = PORTS.len() as u64 - u64::from(COUNTER_QUOTA);
    ensure!(
        any_line.is_some_and(|row| row["connections"].as_u64() >= Some(least)),
        "{any_line:?}"
    );
    let mut lines = rows
        .iter()
        .filter(named)
        .filter(|row| row["scope"] == "line");
    ensure!(
        lines.all(|row| row["at_least"] == true),
        "a line that says it is exact"
    );
    // Refusals of both count: the sidecars do not listen.
    for (pod, cookie) in [(&large, large_cookie), (&other, other_cookie)] {
        let before = counted(&maps, cookie)?;
        ensure!(accepted_by(&pod.actor()?)? == Err(libc::ECONNREFUSED));
        let after = counted(&maps, cookie)?;
        let of = |counts: &BTreeMap<u32, u64>| {
            counts
                .get(&(Rule::SidecarRefused as u32))
                .copied()
                .unwrap_or_default()
        };
        ensure!(of(&after) == of(&before) + 1, "{before:?}, {after:?}");
    }
    earlier_counters_leave_room(&lab, &agent, &large)
}

/// Counters of a policy that the pod has no more are added up, and leave room for others.
fn earlier_counters_leave_room(lab: &Lab, agent: &Agent, large: &PodNet) -> Result<()> {
    let (maps, large_cookie) = (maps(&agent.places)?, agent.places.cookie("test/large")?);
    let policy = agent.places.pod("test/large")?.context("the pod")?["policy_id"].clone();
    lab.write_pod("large", large, &[])?;
    agent.places.wait_pod("test/large", |pod| {
        pod.is_some_and(|pod| pod["policy_id"] != policy)
    })?;
    let total: u64 = counted(&maps, large_cookie)?.values().sum();
    lab.release("other")?;
    // A policy's counters are added up when no program reads it any more.
    eventually(Duration::from_secs(20), || {
        let keys = maps.counts.keys()?.into_iter();
        let rows = keys.filter(|key| key.netns == large_cookie).count() as u64;
        let believed = maps.counters_by_pod.get(&large_cookie)?;
        ensure!(
            rows < 20 && believed == Some(rows),
            "{rows} rows, {believed:?} counted"
        );
        Ok(())
    })?;
    let now: u64 = counted(&maps, large_cookie)?.values().sum();
    ensure!(now == total, "{now} connections of {total}");
    Ok(())
}

kernel_test!(refusals_count_when_the_table_is_full);
/// Whichever pod has filled it.
fn refusals_count_when_the_table_is_full() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP)?;
    let pod = lab.pod("app", 2)?;
    let agent = Agent::start(lab.places())?;
    let maps = maps(&agent.places)?;
    super::full_maps::fill_counters(&agent.places)?;
    lab.enroll("app", &pod, &[])?;
    let client = pod.actor()?;
    for _ in 0..3 {
        ensure!(accepted_by(&client)? == Err(libc::ECONNREFUSED));
    }
    let counts = counted(&maps, agent.places.cookie("test/app")?)?;
    let expected = [
        (Rule::AllOutbound as u32, 3),
        (Rule::SidecarRefused as u32, 3),
    ];
    ensure!(counts == expected.into(), "{counts:?}");
    let row = agent.places.pod("test/app")?.context("the pod")?;
    ensure!(row["connections"]["refused"] == 3, "{row}");
    Ok(())
}
