//! Rows of pods and policies that were removed or altered.

use anyhow::{Context as _, Result, ensure};
use ipnet::IpNet;
use lab::{
    injected::with_istio_init,
    node::VIP,
    protocol::{Dial, Identity},
};
use sidetrack_common::pod::may_be_own;

use super::{cookie, enrolled_pod, maps, was_repaired};
use crate::fixture::{PodFixture, at};

kernel_test!(a_pods_row_is_written_again);
fn a_pods_row_is_written_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let maps = maps(&fixture)?;
    let cookie = cookie(&fixture)?;
    // The row has a filter of the pod's addresses: a new address is a reason to write it that is no repair. An IPv6
    // address gets its route when duplicate address detection has ended.
    fixture.wait("all addresses", || {
        let row = maps.pods.get(&cookie)?.context("its row")?;
        has_all_addresses(&fixture, row.flags)
    })?;
    let row = maps.pods.get(&cookie)?.context("its row")?;
    ensure!(maps.pods.remove(&cookie)?);
    fixture.wait("the row", || Ok(maps.pods.get(&cookie)?.is_some()))?;
    const TEXT: &str = "1 rows of pod test/app were missing or different";
    was_repaired(&fixture, TEXT, 1..=1)?;
    let mut other = row;
    other.policy = 9999;
    other.flags = 0;
    maps.pods.insert(&cookie, &other)?;
    fixture.wait("the altered row", || {
        let now = maps.pods.get(&cookie)?.context("its row")?;
        Ok(now.policy == row.policy && now.flags == row.flags)
    })?;
    was_repaired(&fixture, TEXT, 2..=2)
}

/// Whether the filter in a row's flags has every address of the pod, and no more are to come.
fn has_all_addresses(fixture: &PodFixture, flags: u32) -> Result<bool> {
    let text = fixture.pod.ip("-o addr show")?;
    let mut words = text.split_whitespace();
    let mut known = !text.contains("tentative");
    while let Some(word) = words.next() {
        if word.starts_with("inet") {
            let net: IpNet = words.next().context("an address")?.parse()?;
            let is_own = net.addr().is_loopback() || may_be_own(flags, net.addr().into());
            known &= is_own;
        }
    }
    Ok(known)
}

/// A policy with rows of ports, ranges and owners.
fn policy_with_lists(fixture: &PodFixture) -> Result<()> {
    let manifest = with_istio_init(
        &fixture.pod,
        &[
            "-u",
            "1337,1338",
            "-g",
            "1337,1339",
            "-i",
            "10.109.0.0/16,192.0.2.0/24",
            "-x",
            "198.51.100.0/24",
            "-o",
            "81,82",
        ],
        &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "2000,2001")],
    );
    let before = fixture.policy_id()?;
    fixture.lab.write_manifest("app", &manifest)?;
    fixture
        .agent
        .places
        .wait_pod("test/app", |pod| {
            pod.is_some_and(|pod| pod["reason"].is_null() && pod["policy_id"] != before)
        })
        .map(drop)
}

/// How many rows of policies the log says were written again.
fn rows_in_log(fixture: &PodFixture) -> usize {
    const TEXT: &str = " rows of policies were missing";
    let log = fixture.agent.places.log();
    let before = log
        .lines()
        .filter_map(|line| line.strip_suffix(": wrote them again")?.strip_suffix(TEXT));
    let numbers = before.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    numbers.sum()
}

kernel_test!(policies_are_written_again);
fn policies_are_written_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    policy_with_lists(&fixture)?;
    let maps = maps(&fixture)?;
    let id = u32::try_from(fixture.policy_id()?.as_u64().context("a policy")?)?;
    // The policy before keeps its rows for a moment.
    fixture.wait("one policy remains", || Ok(maps.policies.keys()? == [id]))?;
    let ports = maps.ports.rows()?;
    let ranges = maps.ranges.rows()?;
    let owners = maps.owners.rows()?;
    // 81, 82, and the ports of inbound; three ranges; two each of uids, gids and groups.
    ensure!(
        ports.len() >= 2 && ranges.len() == 3 && owners.len() == 6,
        "{ports:?} {ranges:?} {owners:?}"
    );
    for (key, _) in &ports {
        ensure!(maps.ports.remove(key)?);
    }
    for (key, _) in &ranges {
        ensure!(maps.ranges.remove(key)?);
    }
    for (key, _) in &owners {
        ensure!(maps.owners.remove(key)?);
    }
    ensure!(maps.policies.remove(&id)?);
    let removed = ports.len() + ranges.len() + owners.len() + 1;
    fixture.wait("the policy with its lists", || {
        Ok(rows_in_log(&fixture) == removed && maps.policies.get(&id)?.is_some())
    })?;
    for (key, position) in &ports {
        ensure!(maps.ports.get(key)? == Some(*position), "{key:?}");
    }
    for (key, position) in &ranges {
        ensure!(maps.ranges.get(key)? == Some(*position), "{key:?}");
    }
    for (key, position) in &owners {
        ensure!(maps.owners.get(key)? == Some(*position), "{key:?}");
    }
    // They were removed one after the other, perhaps in the middle of a comparison.
    was_repaired(&fixture, "rows of policies were missing", 1..=2)
}

kernel_test!(rows_of_lists_are_repaired_one_by_one);
/// The policy's own row stays: that it is there says nothing about its lists.
fn rows_of_lists_are_repaired_one_by_one() -> Result<()> {
    const TEXT: &str = "1 rows of policies were missing";
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    policy_with_lists(&fixture)?;
    let maps = maps(&fixture)?;
    let id = u32::try_from(fixture.policy_id()?.as_u64().context("a policy")?)?;
    let (port, position) = *maps
        .ports
        .rows()?
        .iter()
        .find(|(key, _)| key.policy == id)
        .context("a port")?;
    maps.ports.insert(&port, &(position + 7))?;
    fixture.wait("the altered position of a port", || {
        Ok(maps.ports.get(&port)? == Some(position))
    })?;
    was_repaired(&fixture, TEXT, 1..=1)?;
    let owners = maps.owners.rows()?;
    ensure!(owners.len() == 6, "{owners:?}");
    let mut repairs = 1;
    for (owner, position) in &owners {
        maps.owners.remove(owner)?;
        fixture.wait("the removed owner", || {
            Ok(maps.owners.get(owner)? == Some(*position))
        })?;
        repairs += 1;
        was_repaired(&fixture, TEXT, repairs..=repairs)?;
    }
    let (owner, position) = owners[0];
    maps.owners.insert(&owner, &(position + 7))?;
    fixture.wait("the altered position of an owner", || {
        Ok(maps.owners.get(&owner)? == Some(position))
    })?;
    was_repaired(&fixture, TEXT, repairs + 1..=repairs + 1)?;
    // The second proxy uid passes.
    let proxy = fixture
        .client
        .dial(Dial::new(&Identity::of(1338), at(VIP, 80)))?;
    ensure!(proxy.is_ok_and(|proxy| proxy.accepted_by == 80));
    Ok(())
}

kernel_test!(a_foreign_pod_row_is_removed);
fn a_foreign_pod_row_is_removed() -> Result<()> {
    const UNUSED_COOKIE: u64 = 0x5eed_0000_0001;
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let maps = maps(&fixture)?;
    let row = maps.pods.get(&cookie(&fixture)?)?.context("a row")?;
    maps.pods.insert(&UNUSED_COOKIE, &row)?;
    fixture.wait("the foreign pod", || {
        Ok(maps.pods.get(&UNUSED_COOKIE)?.is_none())
    })?;
    was_repaired(&fixture, "no agent enrolled the pod", 1..=1)
}
