//! Packets that only pass through a pod.

mod closed;
mod evasion;
mod fixture;
mod repaired;
mod transparency;

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra, nothing_remains},
    command::{run, run_words},
    network::manifest,
    protocol::Connected,
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;

use self::fixture::{Forwarding, MACHINE, SERVICE};
use crate::fixture::{at, ip, original};

const VIRTUAL: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";
const EXCLUDED: &str = "traffic.sidecar.istio.io/excludeInterfaces";

const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks who took a connection, and that every end sees the addresses that were dialed.
fn check(result: Result<Connected, i32>, by: u16, from: &str, to: &str, port: u16) -> Result<()> {
    let seen = result.map_err(|errno| anyhow!("{to}:{port}: errno {errno}"))?;
    let dialed = at(to, port);
    ensure!(seen.accepted_by == by, "not accepted by {by}: {seen:?}");
    ensure!(seen.server.peer.ip() == ip(from), "the peer: {seen:?}");
    ensure!(seen.client.peer == dialed, "the client's peer: {seen:?}");
    ensure!(
        seen.server.local == dialed,
        "the server's address: {seen:?}"
    );
    if by != port {
        let of_server = original(&seen.server, dialed);
        ensure!(
            of_server == Ok(dialed),
            "the original destination: {seen:?}"
        );
    }
    Ok(())
}

/// Checks who takes the machine's connections to a service, and those from outside to the machine.
fn check_both_ways(pod: &Forwarding, leave_by: u16, enter_by: u16) -> Result<()> {
    for family in [0, 1] {
        let (machine, service) = (MACHINE[family], SERVICE[family]);
        check(pod.leave(ip(service), 80)?, leave_by, machine, service, 80)?;
        let gateway = ["10.77.0.254", "fd77::fe"][family];
        check(pod.enter(ip(machine), 80)?, enter_by, gateway, machine, 80)?;
    }
    Ok(())
}

/// All but those of the kernel itself, which may be late.
fn own_routes(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines
        .filter(|line| !line.contains("proto kernel"))
        .collect()
}

/// Waits until routes and rules are as they were. The agent restores them last.
fn wait_routing(pod: &Forwarding, before: &str) -> Result<()> {
    eventually(WAIT_TIMEOUT, || {
        let after = pod.routing()?;
        ensure!(
            own_routes(&after) == own_routes(before),
            "before:\n{before}\nafter:\n{after}"
        );
        Ok(())
    })
}

kernel_test!(by_virtual_interfaces_to_the_outbound_port, needs INGRESS_INTERFACE);
fn by_virtual_interfaces_to_the_outbound_port() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
    pod.wait_programs(2)?;
    for family in [0, 1] {
        let (machine, service) = (MACHINE[family], SERVICE[family]);
        check(pod.leave(ip(service), 80)?, 15001, machine, service, 80)?;
        // No process serves this port.
        check(pod.leave(ip(service), 7777)?, 15001, machine, service, 7777)?;
        // Inbound to the machine, by the other interface.
        let gateway = ["10.77.0.254", "fd77::fe"][family];
        check(pod.enter(ip(machine), 80)?, 15006, gateway, machine, 80)?;
        check(
            pod.enter(ip(machine), 15090)?,
            15090,
            gateway,
            machine,
            15090,
        )?;
    }
    let places = &pod.fixture.agent.places;
    for (family, wanted) in [(&[][..], 2), (&["-6"][..], 2)] {
        let rules = places.json(&[&["rules", "test/app", "-o", "json"], family].concat())?;
        let counted = rules.as_array().into_iter().flatten().any(|line| {
            line["rule"]
                .to_string()
                .contains("-i tap+ -j ISTIO_REDIRECT")
                && line["connections"] == wanted
        });
        ensure!(counted, "each connection counts once: {rules}");
    }
    Ok(())
}

kernel_test!(without_virtual_interfaces_to_the_inbound_port);
fn without_virtual_interfaces_to_the_inbound_port() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start_workers(&pod.fixture.pod, &[80], 2)?;
    pod.fixture.enroll(&[])?;
    pod.wait_programs(2)?;
    for family in [0, 1] {
        let (machine, service) = (MACHINE[family], SERVICE[family]);
        check(pod.leave(ip(service), 80)?, 15006, machine, service, 80)?;
    }
    // The pod's own connections are what they were.
    ensure!(pod.fixture.accepted_by()? == 15001);
    let own = pod.enter(ip("10.77.0.2"), 80)?;
    ensure!(own.is_ok_and(|own| own.accepted_by == 15006));
    Ok(())
}

kernel_test!(in_mode_tproxy_to_the_inbound_port, needs INGRESS_INTERFACE);
/// Accepted sockets have the mark of the SYN in this mode; the sidecar's answers leave the pod all the same.
fn in_mode_tproxy_to_the_inbound_port() -> Result<()> {
    let pod = Forwarding::new()?;
    let before = pod.routing()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture
        .enroll(&[("sidecar.istio.io/interceptionMode", "TPROXY")])?;
    pod.wait_programs(2)?;
    check_both_ways(&pod, 15006, 15006)?;
    // In every other mode a pod may have set it for itself.
    let setting = format!(
        "ip netns exec {} cat /proc/sys/net/ipv4/tcp_fwmark_accept",
        pod.fixture.pod.netns
    );
    ensure!(run(&setting)?.trim() != "0");
    let own = pod.enter(ip("10.77.0.2"), 80)?;
    ensure!(own.is_ok_and(|own| own.accepted_by == 15006));
    pod.fixture.lab.remove_manifest("app")?;
    nothing_remains(&pod.fixture.agent.places)?;
    pod.set_forwarding(false)?;
    wait_routing(&pod, &before)
}

kernel_test!(excluded_interfaces_pass, needs INGRESS_INTERFACE);
fn excluded_interfaces_pass() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[(EXCLUDED, "tap0")])?;
    pod.wait_programs(2)?;
    check_both_ways(&pod, 80, 15006)
}

kernel_test!(a_sidecar_that_is_down_refuses, needs INGRESS_INTERFACE);
/// Both ways, and by the interfaces' own checksums and by others.
fn a_sidecar_that_is_down_refuses() -> Result<()> {
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    pod.fixture.enroll(&[(VIRTUAL, "tap0")])?;
    pod.wait_programs(2)?;
    for checksums in ["on", "off"] {
        pod.set_checksum_offload(checksums)?;
        for family in [0, 1] {
            let (machine, service) = (MACHINE[family], SERVICE[family]);
            for (way, answer) in [
                ("leaves", pod.leave(ip(service), 80)?),
                ("enters", pod.enter(ip(machine), 80)?),
            ] {
                let errno = answer.map(|connected| connected.accepted_by);
                ensure!(
                    errno == Err(libc::ECONNREFUSED),
                    "{way}, offload {checksums}, {machine}: {errno:?}"
                );
            }
        }
    }
    Ok(())
}

kernel_test!(interfaces_are_followed, needs INGRESS_INTERFACE);
/// Programs, rules and routes are there while they are needed, and no longer.
fn interfaces_are_followed() -> Result<()> {
    let pod = Forwarding::new()?;
    let before = pod.routing()?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
    pod.wait_programs(2)?;
    pod.set_forwarding(true)?;
    // What the pod itself removes comes back.
    let rules = |pod: &Forwarding| -> Result<Vec<String>> {
        let shown = pod.routing()?;
        let ours = shown.lines().filter(|line| line.contains("proto 174"));
        Ok(ours.map(str::to_owned).collect())
    };
    let complete = rules(&pod)?;
    for (family, priority) in [("-4", 1), ("-6", 2), ("-4", 3)] {
        let removed = format!("{family} rule del pref {priority}");
        pod.fixture.pod.ip(&removed)?;
        eventually(WAIT_TIMEOUT, || {
            ensure!(rules(&pod)? == complete, "{removed}: {}", pod.routing()?);
            Ok(())
        })?;
    }
    // One that a policy names counts alone.
    pod.fixture.pod.ip("link del tap0")?;
    pod.wait_programs(1)?;
    pod.fixture.enroll(&[])?;
    pod.wait_programs(0)?;
    pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
    pod.plug_in("tap1")?;
    pod.wait_programs(2)?;
    check(
        pod.leave(ip(SERVICE[0]), 80)?,
        15001,
        MACHINE[0],
        SERVICE[0],
        80,
    )?;
    pod.fixture.pod.ip("link del tap1")?;
    pod.plug_in("tap0")?;
    pod.wait_programs(2)?;
    pod.fixture.lab.remove_manifest("app")?;
    nothing_remains(&pod.fixture.agent.places)?;
    pod.set_forwarding(false)?;
    wait_routing(&pod, &before)
}

kernel_test!(filters_attach_it_where_links_cannot, needs INGRESS_INTERFACE);
/// As before Linux 6.6.
fn filters_attach_it_where_links_cannot() -> Result<()> {
    let mut pod = Forwarding::new()?;
    let start = |pod: &Forwarding, variables: &[(&str, &str)]| -> Result<Agent> {
        Agent::start_with(pod.fixture.lab.places(), &Extra::variables(variables))
    };
    const OLD: &[(&str, &str)] = &[("SIDETRACK_WITHOUT", "tcx")];
    pod.fixture.agent.end(Signal::SIGKILL)?;
    pod.fixture.agent = start(&pod, OLD)?;
    let before = pod.qdiscs()?;
    pod.set_forwarding(true)?;
    pod.fixture.enroll(&[(VIRTUAL, "tap0")])?;
    pod.wait_programs(2)?;
    ensure!(pod.filters()?.len() == 2, "{}", pod.qdiscs()?);
    let refused = pod.leave(ip(SERVICE[0]), 80)?;
    ensure!(
        refused
            .as_ref()
            .is_err_and(|errno| *errno == libc::ECONNREFUSED),
        "{refused:?}"
    );
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    let pass = |pod: &Forwarding| check_both_ways(pod, 15001, 15006);
    pass(&pod)?;
    // An agent that was killed leaves them; the next one replaces their program.
    pod.fixture.agent.end(Signal::SIGKILL)?;
    pass(&pod)?;
    pod.fixture.agent = start(&pod, OLD)?;
    pod.fixture.agent.places.wait_enrolled("test/app")?;
    pass(&pod)?;
    ensure!(pod.filters()?.len() == 2, "{}", pod.qdiscs()?);
    // What the pod removes comes back.
    let netns = pod.fixture.pod.netns.clone();
    run(&format!("tc -n {netns} qdisc del dev tap0 clsact"))?;
    pod.wait_programs(2)?;
    pass(&pod)?;
    // Another program's stay.
    let place = format!("-n {netns} filter add dev tap0 ingress prio 9 protocol ip bpf");
    let accepts = ["bytecode", "1,6 0 0 0,", "flowid", "1:1"];
    let words = ["tc"].into_iter().chain(place.split(' ')).chain(accepts);
    run_words(&words.collect::<Vec<_>>())?;
    pod.fixture.enroll(&[])?;
    pod.fixture.pod.ip("link set tap0 down")?;
    pod.wait_programs(0)?;
    let theirs = run(&format!("tc -n {netns} filter show dev tap0 ingress"))?;
    ensure!(theirs.contains("pref 9"), "{theirs}");
    run(&format!("tc -n {netns} qdisc del dev tap0 clsact"))?;
    ensure!(pod.qdiscs()? == before, "{}", pod.qdiscs()?);
    pod.fixture.pod.ip("link set tap0 up")?;
    pod.wait_programs(2)?;
    pod.fixture.lab.remove_manifest("app")?;
    nothing_remains(&pod.fixture.agent.places)?;
    ensure!(pod.qdiscs()? == before, "{}", pod.qdiscs()?);
    Ok(())
}

kernel_test!(more_interfaces_than_a_pod_may_have, needs INGRESS_INTERFACE);
/// The oldest have the program, and the pod has a note.
fn more_interfaces_than_a_pod_may_have() -> Result<()> {
    const PAIRS: usize = 40;
    const MAX_INTERFACES: usize = 64;
    let pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    for number in 0..PAIRS {
        let (one, other) = (format!("a{number}"), format!("b{number}"));
        let ip = |line: &str| pod.fixture.pod.ip(line);
        ip(&format!("link add {one} type veth peer name {other}"))?;
        for end in [one, other] {
            ip(&format!("link set {end} up"))?;
        }
    }
    pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
    eventually(4 * WAIT_TIMEOUT, || {
        ensure!(
            pod.programs()?.len() >= MAX_INTERFACES,
            "{:?}",
            pod.programs()?
        );
        Ok(())
    })?;
    let (machine, service) = (MACHINE[0], SERVICE[0]);
    check(pod.leave(ip(service), 80)?, 15001, machine, service, 80)?;
    let pods = pod.fixture.agent.places.pod("test/app")?;
    let omitted = 2 + 2 * PAIRS - MAX_INTERFACES;
    let noted = pods.is_some_and(|it| {
        it["notes"]
            .to_string()
            .contains(&format!("from {omitted} of them"))
    });
    ensure!(noted, "{:?}", pod.fixture.agent.places.pod("test/app")?);
    Ok(())
}

kernel_test!(an_agent_that_is_killed_changes_nothing, needs INGRESS_INTERFACE);
fn an_agent_that_is_killed_changes_nothing() -> Result<()> {
    let mut pod = Forwarding::new()?;
    pod.set_forwarding(true)?;
    let _sidecar = sidecar::start(&pod.fixture.pod, &[80])?;
    pod.fixture.enroll(&[(VIRTUAL, "tap+")])?;
    pod.wait_programs(2)?;
    let pass = |pod: &Forwarding| -> Result<()> {
        for family in [0, 1] {
            let (machine, service) = (MACHINE[family], SERVICE[family]);
            check(pod.leave(ip(service), 80)?, 15001, machine, service, 80)?;
        }
        Ok(())
    };
    pass(&pod)?;
    pod.fixture.agent.end(Signal::SIGKILL)?;
    pass(&pod)?;
    let programs = pod.programs()?;
    pod.fixture.agent = Agent::start(pod.fixture.lab.places())?;
    pod.fixture.agent.places.wait_enrolled("test/app")?;
    ensure!(pod.programs()? == programs, "adopted");
    pass(&pod)?;
    // Gone while no agent runs.
    pod.fixture.agent.end(Signal::SIGKILL)?;
    let text = manifest("app", &pod.fixture.pod, &[]);
    pod.fixture.lab.write_manifest("app", &text)?;
    pod.fixture.pod.ip("link del tap0")?;
    pod.fixture.agent = Agent::start(pod.fixture.lab.places())?;
    pod.fixture.agent.places.wait_enrolled("test/app")?;
    pod.wait_programs(0)?;
    let routing = pod.routing()?;
    ensure!(!routing.contains("proto 174"), "{routing}");
    // The policy changes as for every other pod.
    pod.plug_in("tap0")?;
    pod.wait_programs(2)?;
    pod.fixture
        .lab
        .write_pod("app", &pod.fixture.pod, &[(EXCLUDED, "tap0")])?;
    eventually(WAIT_TIMEOUT, || {
        ensure!(
            pod.leave(ip(SERVICE[0]), 80)?
                .is_ok_and(|seen| seen.accepted_by == 80),
            "excluded"
        );
        Ok(())
    })
}
