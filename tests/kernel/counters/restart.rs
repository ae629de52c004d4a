//! A new agent finds the policies of the one before it, so that what they counted stays theirs.

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    injected::with_istio_init,
    node::VIP,
    protocol::{APP, Dial},
    sidecar,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use sidetrack_common::count::EARLIER_POLICIES;

use crate::fixture::{PodFixture, at};

/// Lists of every kind, so that all of them have to be found equal.
const LISTS: &[&str] = &[
    "-u",
    "1337,1338",
    "-i",
    "10.109.0.0/16,fd99::/64",
    "-x",
    "10.109.120.0/24",
    "-o",
    "81,82",
    "-q",
    "91",
    "-d",
    "8081",
];

fn enroll(fixture: &PodFixture, arguments: &[&str]) -> Result<()> {
    let groups = [("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000,2001")];
    let manifest = with_istio_init(&fixture.pod, arguments, &groups);
    fixture.lab.enroll_manifest("app", &manifest)
}

/// Connections of the rule that redirects, by the policy in force and by those before it.
fn counted(fixture: &PodFixture) -> Result<[u64; 2]> {
    let rows = fixture
        .agent
        .places
        .json(&["rules", "test/app", "-o", "json"])?;
    let rows = rows.as_array().context("a list of rules")?;
    let sum = |scope: &str| -> u64 {
        let wanted = |row: &&Value| row["scope"] == scope && row["name"] == "out-range-included";
        let rows = rows.iter().filter(wanted);
        rows.filter_map(|row| row["connections"].as_u64()).sum()
    };
    Ok([sum("line"), sum("earlier")])
}

kernel_test!(counts_stay_with_an_unchanged_policy);
fn counts_stay_with_an_unchanged_policy() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    enroll(&fixture, LISTS)?;
    let policy = fixture.policy_id()?;
    let connect = |fixture: &PodFixture| -> Result<()> {
        let connected = fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?;
        ensure!(connected.is_ok(), "{connected:?}");
        Ok(())
    };
    connect(&fixture)?;
    for (round, signal) in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL]
        .into_iter()
        .enumerate()
    {
        fixture.agent.end(signal)?;
        fixture.agent = Agent::start(&fixture.agent.places)?;
        fixture.agent.places.wait_enrolled("test/app")?;
        connect(&fixture)?;
        // The agent counts when its list of pods changes, and removes what no pod names.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let shown = counted(&fixture)?;
        ensure!(shown == [round as u64 + 2, 0], "after {signal}: {shown:?}");
        ensure!(
            fixture.policy_id()? == policy,
            "policy {} was {policy}",
            fixture.policy_id()?
        );
    }
    let maps = fixture.lab.places().maps()?;
    let earlier = maps
        .counts
        .keys()?
        .into_iter()
        .filter(|key| key.policy == EARLIER_POLICIES);
    ensure!(earlier.count() == 0, "counters of earlier policies");
    ensure!(
        maps.policies.keys()?.len() == 1,
        "{:?}",
        maps.policies.keys()?
    );

    // One that has changed meanwhile is another one.
    fixture.agent.end(Signal::SIGKILL)?;
    let changed: Vec<&str> = LISTS
        .iter()
        .map(|word| if *word == "81,82" { "82,81" } else { word })
        .collect();
    let manifest = with_istio_init(
        &fixture.pod,
        &changed,
        &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000,2001")],
    );
    fixture.lab.write_manifest("app", &manifest)?;
    fixture.agent = Agent::start(&fixture.agent.places)?;
    fixture.agent.places.wait_enrolled("test/app")?;
    ensure!(fixture.policy_id()? != policy);
    connect(&fixture)?;
    let shown = counted(&fixture)?;
    ensure!(shown == [1, 4], "after a change: {shown:?}");
    Ok(())
}
