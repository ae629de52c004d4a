//! A pod gets its IPv6 address after it was enrolled.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::Agent,
    network::{Lab, Manifest, PodNet},
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
    wait::eventually,
};
use sidetrack_common::pod::POD_CAPTURE_V6;

use crate::fixture::{Arrives, POD, VIP, at, check};

/// A change in the pod is followed within this.
const SOON: Duration = Duration::from_secs(1);

kernel_test!(late_ipv6_with_dual_stack);
/// The pod has an IPv4 address from the start.
fn late_ipv6_with_dual_stack() -> Result<()> {
    late_ipv6(true, &["address del fd77::2/64 dev eth0"])
}

kernel_test!(late_ipv6_as_first_address);
/// Without dual stack a pod's first address decides.
fn late_ipv6_as_first_address() -> Result<()> {
    let gone = [
        "address del fd77::2/64 dev eth0",
        "address del 10.77.0.2/16 dev eth0",
    ];
    late_ipv6(false, &gone)
}

fn late_ipv6(dual_stack: bool, gone: &[&str]) -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP[1])?;
    let pod = lab.pod("app", 2)?;
    let outside = lab.outside().actor()?;
    sidecar::listen(&outside, &ROOT, 80)?;
    for address in gone {
        pod.ip(address)?;
    }
    let agent = Agent::start(lab.places())?;
    lab.enroll_manifest("app", &Manifest::new("app", &pod).dual_stack(dual_stack))?;
    let _sidecar = sidecar::start(&pod, &[80])?;
    let maps = lab.places().maps()?;
    let row = maps.pods.rows()?.first().context("the pod's row")?.1;
    ensure!(row.flags & POD_CAPTURE_V6 == 0, "IPv6 is not captured yet");
    ensure!(!has_self_address(&pod)?, "::6 is not on lo yet");

    pod.ip("address add fd77::2/64 dev eth0 nodad")?;
    pod.ip("route replace default via fd77::fe dev eth0")?;
    let client = pod.actor()?;
    // Until then it reaches the service itself.
    eventually(SOON, || {
        let to = at(VIP[1], 80);
        let result = client.dial(Dial::new(&APP, to))?;
        let captured = check(&result, Arrives::Sidecar(15001), POD[1], to);
        ensure!(captured.is_ok(), "{result:?}\n{}", agent.places.log());
        Ok(())
    })?;
    ensure!(has_self_address(&pod)?, "::6 is on lo");
    // The other directions are captured since the same moment.
    let own = at(POD[1], 80);
    let result = client.dial(Dial::new(&PROXY, own))?;
    check(&result, Arrives::Sidecar(15006), POD[1], own).context("the proxy to its own pod")?;
    let inbound = outside.dial(Dial::new(&ROOT, own))?;
    ensure!(
        inbound
            .as_ref()
            .is_ok_and(|inbound| inbound.accepted_by == 15006 && inbound.server.local == own),
        "inbound: {inbound:?}"
    );
    Ok(())
}

/// Whether the sidecar's source address for IPv6 is on lo.
fn has_self_address(pod: &PodNet) -> Result<bool> {
    Ok(pod.ip("-6 address show dev lo")?.contains("::6/128"))
}
