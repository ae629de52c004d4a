//! A policy that no pod has any more is removed only after the programs that may be reading it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    network::manifest,
    product::Maps,
    protocol::{APP, Dial},
    sidecar,
    wait::eventually,
};
use sidetrack_common::rule::Rule;

use crate::fixture::{PodFixture, VIP, at};

/// How long a policy stays.
const GRACE: Duration = Duration::from_secs(1);
/// How much later it is gone at the latest.
const SOON_AFTER: Duration = Duration::from_secs(5);

/// The pod's policy with rows in every list; `port` makes it another policy.
fn write(fixture: &PodFixture, port: usize) -> Result<()> {
    let port = port.to_string();
    let text = manifest(
        "app",
        &fixture.pod,
        &[
            (
                "traffic.sidecar.istio.io/includeOutboundIPRanges",
                "10.0.0.0/8",
            ),
            ("traffic.sidecar.istio.io/excludeOutboundPorts", &port),
        ],
    );
    let text = text.with_variable("ISTIO_OUTBOUND_OWNER_GROUPS", "1000");
    fixture.lab.write_manifest("app", &text)
}

/// How many rows a policy has: its own and those of its lists.
fn rows(maps: &Maps, id: u32) -> Result<usize> {
    let ports = maps.ports.keys()?.into_iter().map(|key| key.policy);
    let owners = maps.owners.keys()?.into_iter().map(|key| key.policy);
    let ranges = maps.ranges.keys()?.into_iter().map(|key| key.policy);
    let all = maps.policies.keys()?.into_iter();
    let all = all.chain(ports).chain(owners).chain(ranges);
    Ok(all.filter(|of| *of == id).count())
}

/// Changes the policy and waits until the earlier one is removed.
fn change(fixture: &PodFixture, maps: &Maps, port: usize) -> Result<()> {
    let policy = || -> Result<u32> {
        let pods = maps.pods.rows()?;
        Ok(pods.first().context("the pod's row")?.1.policy)
    };
    let old = policy()?;
    let before = rows(maps, old)?;
    write(fixture, port)?;
    // The last time that the old policy is known to be the pod's.
    let mut last_used = Instant::now();
    let start = last_used;
    loop {
        let now = Instant::now();
        if policy()? != old {
            break;
        }
        last_used = now;
        ensure!(start.elapsed() < SOON_AFTER, "the policy does not change");
    }
    let remaining = loop {
        let remaining = rows(maps, old)?;
        if remaining != before {
            break remaining;
        }
        ensure!(
            last_used.elapsed() < SOON_AFTER,
            "policy {old} is not removed"
        );
        thread::sleep(Duration::from_millis(2));
    };
    let stayed = last_used.elapsed();
    ensure!(
        stayed >= GRACE,
        "policy {old} had {remaining} of {before} rows {stayed:?} after its last use"
    );
    eventually(SOON_AFTER, || {
        ensure!(rows(maps, old)? == 0, "rows of policy {old} stay");
        Ok(())
    })
}

kernel_test!(a_policy_stays_for_its_last_readers);
fn a_policy_stays_for_its_last_readers() -> Result<()> {
    const CHANGES: usize = 4;
    const AT_A_TIME: usize = 50;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    write(&fixture, 81)?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let maps = fixture.lab.places().maps()?;
    let done = AtomicBool::new(false);
    let traffic = || -> Result<usize> {
        let mut count = 0;
        let dials = vec![Dial::new(&APP, at(VIP[0], 80)); AT_A_TIME];
        while !done.load(Ordering::Relaxed) {
            for result in fixture.client.dial_all(dials.clone())? {
                let connected = result.map_err(|errno| anyhow!("errno {errno}"))?;
                ensure!(connected.accepted_by == 15001, "{connected:?}");
                count += 1;
            }
        }
        Ok(count)
    };
    let dialed = thread::scope(|scope| {
        let traffic = scope.spawn(traffic);
        let changed = (1..=CHANGES).try_for_each(|number| change(&fixture, &maps, 81 + number));
        done.store(true, Ordering::Relaxed);
        let dialed = traffic
            .join()
            .map_err(|_| anyhow!("the traffic panicked"))??;
        changed.map(|()| dialed)
    })?;
    ensure!(dialed > AT_A_TIME, "only {dialed} connections");
    let counted = maps.counts.rows()?;
    let refused = counted
        .iter()
        .find(|(key, _)| key.rule == Rule::NoPolicy as u32);
    ensure!(refused.is_none(), "a policy was missing: {refused:?}");
    Ok(())
}
