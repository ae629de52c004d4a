//! Rows of pods and policies that were removed or altered.

use anyhow::{Context as _, Result, ensure};

use super::{cookie, enrolled_pod, maps, wait, was_repaired, works};

kernel_test!(a_pods_row_is_written_again);
fn a_pods_row_is_written_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let maps = maps(&fixture)?;
    let cookie = cookie(&fixture)?;
    let row = maps.pods.get(&cookie)?.context("its row")?;
    ensure!(maps.pods.remove(&cookie)?);
    wait(&fixture, "the row", || {
        Ok(maps.pods.get(&cookie)?.is_some())
    })?;
    was_repaired(&fixture, "rows of pod test/app were missing or different")?;
    let mut other = row;
    other.policy = 9999;
    other.flags = 0;
    maps.pods.insert(&cookie, &other)?;
    wait(&fixture, "the altered row", || {
        let now = maps.pods.get(&cookie)?.context("its row")?;
        Ok(now.policy == row.policy && now.flags == row.flags)
    })?;
    works(&fixture)
}

kernel_test!(policies_are_written_again);
fn policies_are_written_again() -> Result<()> {
    let (fixture, _sidecar) = enrolled_pod(&[
        (
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            "192.0.2.0/24,198.51.100.0/24",
        ),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "81,82"),
    ])?;
    let maps = maps(&fixture)?;
    let id = u32::try_from(fixture.policy_id()?.as_u64().context("a policy")?)?;
    let port = *maps.ports.keys()?.first().context("a port")?;
    let range = *maps.ranges.keys()?.first().context("a range")?;
    let owner = maps.owners.keys()?.first().copied();
    let position = maps.ports.get(&port)?.context("its position")?;
    ensure!(maps.ports.remove(&port)? && maps.ranges.remove(&range)?);
    if let Some(owner) = &owner {
        maps.owners.remove(owner)?;
    }
    ensure!(maps.policies.remove(&id)?);
    wait(&fixture, "the policy", || {
        Ok(maps.policies.get(&id)?.is_some())
    })?;
    ensure!(maps.ports.get(&port)? == Some(position), "the port's row");
    ensure!(maps.ranges.get(&range)?.is_some(), "the range's row");
    if let Some(owner) = &owner {
        ensure!(maps.owners.get(owner)?.is_some(), "the owner's row");
    }
    was_repaired(&fixture, "rows of policies were missing")?;
    // A row of a list by itself.
    maps.ports.insert(&port, &(position + 7))?;
    wait(&fixture, "the altered position", || {
        Ok(maps.ports.get(&port)? == Some(position))
    })
}

kernel_test!(a_foreign_pod_row_is_removed);
fn a_foreign_pod_row_is_removed() -> Result<()> {
    const UNUSED_COOKIE: u64 = 0x5eed_0000_0001;
    let (fixture, _sidecar) = enrolled_pod(&[])?;
    let maps = maps(&fixture)?;
    let row = maps.pods.get(&cookie(&fixture)?)?.context("a row")?;
    maps.pods.insert(&UNUSED_COOKIE, &row)?;
    wait(&fixture, "the foreign pod", || {
        Ok(maps.pods.get(&UNUSED_COOKIE)?.is_none())
    })?;
    was_repaired(&fixture, "no agent enrolled the pod")
}
