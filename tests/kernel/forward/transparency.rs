//! IP_TRANSPARENT of the sidecar's listeners: set for what passes through a pod, and for nothing else.

use anyhow::{Result, anyhow, ensure};
use lab::{
    command::run,
    deploy::lacks,
    injected::with_istio_init,
    protocol::{Dial, ROOT},
    sidecar,
    wait::eventually,
};

use super::{
    VIRTUAL, WAIT_TIMEOUT, check,
    fixture::{Forwarding, MACHINE, SERVICE},
};
use crate::{
    fixture::{POD, at, ip},
    takeover::load_rules,
};

/// The ports whose listeners are transparent.
fn transparent(pod: &Forwarding) -> Result<Vec<u16>> {
    let netns = &pod.fixture.pod.netns;
    let shown = run(&format!(
        "ip netns exec {netns} ss -H -O -4 -l -n -t --inet-sockopt"
    ))?;
    let lines = shown.lines().filter(|line| line.contains("transparent"));
    let ports = lines.filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next());
    Ok(ports.filter_map(|port| port.parse().ok()).collect())
}

/// The machine's connection leaves by the pod.
fn pass_through(pod: &Forwarding) -> Result<()> {
    let (machine, service) = (MACHINE[0], SERVICE[0]);
    check(pod.leave(ip(service), 80)?, 15001, machine, service, 80)
}

kernel_test!(only_what_passes_through_makes_listeners_transparent, needs INGRESS_INTERFACE);
fn only_what_passes_through_makes_listeners_transparent() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    for _ in 0..2 {
        pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
        pod.wait_programs(2)?;
        // The pod's own connections, in and out, need none.
        ensure!(pod.fixture.accepted_by()? == 15001);
        let own = pod.enter(ip(POD[0]), 80)?;
        ensure!(own.is_ok_and(|own| own.accepted_by == 15006));
        ensure!(transparent(&pod)?.is_empty(), "{:?}", transparent(&pod)?);
        pass_through(&pod)?;
        let set = transparent(&pod)?;
        ensure!(set.contains(&15001), "{set:?}");
        pod.fixture.lab.release("app")?;
        eventually(WAIT_TIMEOUT, || {
            let set = transparent(&pod)?;
            ensure!(set.is_empty(), "not needed any more: {set:?}");
            Ok(())
        })?;
    }
    Ok(())
}

kernel_test!(rules_that_are_there_see_no_transparent_listener);
/// Rules that redirect to a transparent listener leave one of several connections of a source port without an answer.
fn rules_that_are_there_see_no_transparent_listener() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80, 81])?;
    let manifest = with_istio_init(&pod.fixture.pod, &["-k", "tap+"], &[]);
    load_rules(&pod.fixture, &manifest)?;
    let dial_from_one_port = |source: &str, when: &str| -> Result<()> {
        let mut dial = Dial::new(&ROOT, at(POD[0], 80));
        dial.source = Some(source.parse()?);
        dial.beside = Some(at(POD[0], 81));
        let connected = pod.fixture.outside.dial(dial)?;
        let connected = connected.map_err(|errno| anyhow!("{when}: errno {errno}"))?;
        ensure!(connected.accepted_by == 15006, "{when}: {connected:?}");
        Ok(())
    };
    // Linux 6.1 leaves one of them without an answer although no listener is transparent.
    if dial_from_one_port("10.77.0.254:40000", "by the rules alone").is_err()
        && lacks("forward", "NAT that serves both")
    {
        return Ok(());
    }
    pod.fixture.lab.enroll_manifest("app", &manifest)?;
    pod.wait_programs(2)?;
    dial_from_one_port("10.77.0.254:40001", "enrolled")?;
    let passed = pod.leave(ip(SERVICE[0]), 80)?;
    ensure!(
        passed.as_ref().is_ok_and(|it| it.accepted_by == 15001),
        "{passed:?}"
    );
    dial_from_one_port(
        "10.77.0.254:40003",
        "enrolled, after one has passed through",
    )?;
    pod.fixture.lab.release("app")?;
    eventually(WAIT_TIMEOUT, || {
        ensure!(transparent(&pod)?.is_empty());
        Ok(())
    })?;
    dial_from_one_port("10.77.0.254:40002", "released")
}
