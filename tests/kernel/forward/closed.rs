//! Pods that do not forward: what the rules capture does not depend on that, because they come before routing.

use anyhow::{Result, ensure};
use lab::sidecar;

use super::{
    EXCLUDED, VIRTUAL, check, check_both_ways,
    fixture::{Forwarding, MACHINE, SERVICE},
};
use crate::fixture::ip;

/// Without an answer, as a client sees it.
const LOST: i32 = libc::EINPROGRESS;

kernel_test!(a_pod_that_does_not_forward_captures_the_same, needs INGRESS_INTERFACE);
fn a_pod_that_does_not_forward_captures_the_same() -> Result<()> {
    let pod = Forwarding::new()?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    for (annotations, leave_by, enter_by) in [
        (&[][..], 15006, 15006),
        (&[(VIRTUAL, "tap+")], 15001, 15006),
        (&[(VIRTUAL, "eth0")], 15006, 15001),
    ] {
        pod.fixture.enroll(annotations)?;
        pod.wait_programs(2)?;
        let start = std::time::Instant::now();
        // The policy has just changed.
        while let Err(error) = check_both_ways(&pod, leave_by, enter_by) {
            ensure!(
                start.elapsed() < super::WAIT_TIMEOUT,
                "{annotations:?}: {error:#}"
            );
        }
        ensure!(pod.fixture.accepted_by()? == 15001, "the pod's own");
    }
    Ok(())
}

kernel_test!(a_pod_that_does_not_forward_drops_the_rest, needs INGRESS_INTERFACE);
/// What no rule captures is dropped, as without sidetrack: no listener of the pod gets it, and no process answers.
fn a_pod_that_does_not_forward_drops_the_rest() -> Result<()> {
    let pod = Forwarding::new()?;
    // It listens on an excluded port as well.
    let sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[(EXCLUDED, "tap0")])?;
    pod.wait_programs(2)?;
    for family in [0, 1] {
        let (machine, service) = (ip(MACHINE[family]), ip(SERVICE[family]));
        for (what, result) in [
            ("an excluded interface", pod.leave(service, 80)?),
            ("an excluded port", pod.enter(machine, 15090)?),
        ] {
            let result = result.map(|connected| connected.accepted_by);
            ensure!(result == Err(LOST), "{what}, {machine}: {result:?}");
        }
        let gateway = ["10.77.0.254", "fd77::fe"][family];
        check(pod.enter(machine, 80)?, 15006, gateway, MACHINE[family], 80)?;
    }
    // The sidecar is down: refused, as in every pod.
    drop(sidecar);
    for family in [0, 1] {
        let result = pod.enter(ip(MACHINE[family]), 80)?;
        let result = result.map(|connected| connected.accepted_by);
        ensure!(result == Err(libc::ECONNREFUSED), "{result:?}");
    }
    Ok(())
}
