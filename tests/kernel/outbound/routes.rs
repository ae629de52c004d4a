//! Unusual destinations, routes and devices.

use anyhow::{Context as _, Result, ensure};
use lab::{
    product::{Maps, Pins},
    protocol::{APP, Dial, PROXY},
};
use sidetrack_common::rule::Rule;

use super::row;
use crate::fixture::{Arrives, POD, SharedFixture, VIP, at, check};

shared_test!(unspecified_destinations);
fn unspecified_destinations(fixture: &SharedFixture) -> Result<()> {
    for (creator, source, to, meant, arrives, seen_as) in [
        (
            &APP,
            None,
            "0.0.0.0",
            "127.0.0.1",
            Arrives::Untouched,
            "127.0.0.1",
        ),
        (&APP, None, "::", "::1", Arrives::Untouched, "::1"),
        (
            &PROXY,
            Some(POD[0]),
            "0.0.0.0",
            POD[0],
            Arrives::Sidecar(15006),
            POD[0],
        ),
        (&PROXY, None, "::", "::1", Arrives::Untouched, "::1"),
    ] {
        let mut dial = Dial::new(creator, at(to, 80));
        dial.source = source.map(|source| at(source, 0));
        let result = fixture.dial(dial)?;
        check(&result, arrives, seen_as, at(meant, 80))
            .with_context(|| format!("uid {} from {source:?} to {to}", creator.uid))?;
    }
    Ok(())
}

shared_test!(routes_that_refuse);
fn routes_that_refuse(fixture: &SharedFixture) -> Result<()> {
    for (to, errno) in [
        ("10.201.0.1", libc::EINVAL),
        ("10.202.0.1", libc::EHOSTUNREACH),
        ("10.203.0.1", libc::EACCES),
        ("fdb1::1", libc::EINVAL),
        ("fdb2::1", libc::EHOSTUNREACH),
        ("fdb3::1", libc::EACCES),
        ("224.0.0.1", libc::ENETUNREACH),
        ("255.255.255.255", libc::ENETUNREACH),
        ("10.77.255.255", libc::ENETUNREACH),
        ("ff02::1", libc::ENETUNREACH),
    ] {
        // The proxy is not captured, so what it gets is the kernel's own word.
        for creator in [&PROXY, &APP] {
            row(
                fixture,
                creator,
                None,
                at(to, 80),
                Arrives::Fails(errno),
                "",
            )?;
        }
    }
    Ok(())
}

shared_test!(bound_to_a_device);
fn bound_to_a_device(fixture: &SharedFixture) -> Result<()> {
    // Under iptables this times out; sidetrack leaves it untouched and counts it.
    let maps = Maps::open(&Pins::new(&fixture.agent.places.bpffs)?)?;
    // No other test of this network binds a socket to a device.
    let counted = || -> Result<u64> {
        let counts = maps.counts.sums()?.into_iter();
        let of_rule = counts.filter(|(key, _)| key.rule == Rule::BoundDevice as u32);
        Ok(of_rule.map(|(_, count)| count).sum())
    };
    for (dialed, vip) in VIP.into_iter().enumerate() {
        ensure!(counted()? == dialed as u64, "{} are counted", counted()?);
        let to = at(vip, 80);
        let mut dial = Dial::new(&APP, to);
        dial.device = Some("eth0".to_owned());
        let connected = fixture
            .dial(dial)?
            .map_err(|errno| anyhow::anyhow!("to {to}: errno {errno}"))?;
        ensure!(
            connected.accepted_by == 80 && connected.server.local == to,
            "{connected:?}"
        );
    }
    ensure!(counted()? == VIP.len() as u64, "{} are counted", counted()?);
    Ok(())
}
