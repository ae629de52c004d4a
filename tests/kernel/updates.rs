//! Policies that change under traffic: every connection is evaluated by the old or by the new one,
//! never by parts of both.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Result, anyhow, ensure};
use lab::{
    protocol::{APP, Dial},
    sidecar,
};

use crate::fixture::{PodFixture, at};

kernel_test!(no_connection_meets_half_a_policy);
fn no_connection_meets_half_a_policy() -> Result<()> {
    flips(&CAPTURED, 15001)
}

kernel_test!(no_connection_meets_half_an_exclusion, needs INGRESS_INTERFACE);
fn no_connection_meets_half_an_exclusion() -> Result<()> {
    flips(&UNTOUCHED, 80)
}

/// Three policies that capture the service. A mix of the row of one and the lists of another would not.
const CAPTURED: [[(&str, &str); 2]; 3] = [
    [
        ("includeOutboundIPRanges", "10.0.0.0/8"),
        ("excludeOutboundPorts", "53"),
    ],
    [
        ("includeOutboundIPRanges", ""),
        ("includeOutboundPorts", "80"),
    ],
    [
        ("includeOutboundIPRanges", "10.109.0.0/16,192.0.2.0/24"),
        ("excludeOutboundIPRanges", "10.108.0.0/16"),
    ],
];

/// Two policies that do not: interfaces are not kept with the lists.
const UNTOUCHED: [[(&str, &str); 2]; 2] = [
    [
        ("excludeOutboundPorts", "80"),
        ("excludeInboundPorts", "80"),
    ],
    [("excludeInterfaces", "eth0"), ("excludeInboundPorts", "81")],
];

/// Changes the policy between all of these; `port` always accepts connections to the service.
fn flips(policies: &[[(&str, &str); 2]], port: u16) -> Result<()> {
    const FLIPS: usize = 30;
    const AT_A_TIME: usize = 50;
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    let enroll = |number: usize| {
        let annotations = policies[number % policies.len()]
            .map(|(name, value)| (format!("traffic.sidecar.istio.io/{name}"), value));
        let annotations = annotations
            .each_ref()
            .map(|(name, value)| (name.as_str(), *value));
        fixture.enroll(&annotations)
    };
    enroll(0)?;
    let done = AtomicBool::new(false);
    let traffic = || -> Result<usize> {
        let mut count = 0;
        let dials = vec![Dial::new(&APP, at("10.109.118.31", 80)); AT_A_TIME];
        while !done.load(Ordering::Relaxed) {
            for result in fixture.client.dial_all(dials.clone())? {
                let connected = result.map_err(|errno| anyhow!("errno {errno}"))?;
                ensure!(connected.accepted_by == port, "it slipped: {connected:?}");
                count += 1;
            }
        }
        Ok(count)
    };
    thread::scope(|scope| {
        let traffic = scope.spawn(traffic);
        let flipped = (1..=FLIPS).try_for_each(enroll);
        done.store(true, Ordering::Relaxed);
        let count = traffic
            .join()
            .map_err(|_| anyhow!("the traffic panicked"))??;
        ensure!(count > FLIPS, "only {count} connections");
        flipped
    })
}
