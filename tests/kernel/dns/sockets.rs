//! Sockets that are not used in the plainest way, and programs that run twice for them.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use lab::{actor::Actor, command::run, product::Pins, protocol::APP, wait::until};
use nix::sys::signal::Signal;

use super::{CAPTURE, DNS, DnsFixture, capture};
use crate::fixture::{VIP, at};

/// Asks one server after the other by one socket, which is connected to each. Prints for each where the answer came
/// from and the socket's peer.
const RECONNECTED: &str = "
import socket, sys
servers = [(server, 53) for server in sys.argv[1:]]
family = socket.AF_INET6 if ':' in servers[0][0] else socket.AF_INET
asking = socket.socket(family, socket.SOCK_DGRAM)
asking.settimeout(5)
for server in servers:
    asking.connect(server)
    asking.send(b'query')
    _, answered = asking.recvfrom(512)
    print(answered[0], asking.getpeername()[0])
# An explicit address, as some resolvers give it on a connected socket.
asking.sendto(b'query', servers[-1])
_, answered = asking.recvfrom(512)
print(answered[0], asking.getpeername()[0])
";

kernel_test!(a_socket_may_be_connected_again);
fn a_socket_may_be_connected_again() -> Result<()> {
    let dns = DnsFixture::new(&[])?;
    let all = dns.manifest(&["--redirect-dns", "--capture-all-dns"]);
    dns.enroll(&all)?;
    for family in [0, 1] {
        let servers = [VIP[family], super::OTHER[family], VIP[family]];
        let python = Path::new("/usr/bin/python3");
        let arguments = [&["-c", RECONNECTED], &servers[..]].concat();
        let pod = &dns.fixture.pod;
        let output = pod.command(APP.uid, python, &arguments).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut wanted: Vec<String> = servers.iter().map(|it| format!("{it} {it}")).collect();
        wanted.extend(wanted.last().cloned());
        ensure!(
            printed.lines().eq(wanted.iter().map(String::as_str)),
            "{printed}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

kernel_test!(programs_that_run_twice_change_nothing);
/// They are on the pod's own cgroup, and on that of all pods because of a process that is elsewhere.
fn programs_that_run_twice_change_nothing() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0], VIP[1]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let places = &dns.fixture.agent.places;
    let pins = Pins::new(&places.bpffs)?;
    let for_all = || pins.link("dns_connect4").exists();
    ensure!(!for_all(), "the pod's own are enough");
    let visitor = Actor::start(&dns.fixture.pod.netns, &places.cgroup)?;
    dns.fixture.wait("all pods have them", || Ok(for_all()))?;
    for family in [0, 1] {
        dns.answered_by(&APP, VIP[family], capture(VIP[family]))?;
    }
    let rules = places.json(&["rules", "test/app", "-o", "json"])?;
    let counted = rules.as_array().context("rules")?.iter();
    let counted = counted.filter(|row| row["rule"].to_string().contains("-p udp"));
    let counted: u64 = counted.filter_map(|row| row["connections"].as_u64()).sum();
    // Connected and not, once each.
    ensure!(counted == 2, "{counted} to port {CAPTURE}: {rules}");
    drop(visitor);
    dns.fixture.wait("they are gone again", || Ok(!for_all()))?;
    dns.answered_by(&APP, VIP[0], capture(VIP[0]))?;
    let to = at(VIP[0], DNS);
    ensure!(
        dns.query(&APP, to, true)?
            .is_ok_and(|it| it.came_from == to)
    );
    Ok(())
}

kernel_test!(removed_pins_are_made_again);
fn removed_pins_are_made_again() -> Result<()> {
    let mut dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&["--redirect-dns"]))?;
    let places = dns.fixture.agent.places.clone();
    let dir = Pins::new(&places.bpffs)?.pod_dir(places.cookie("test/app")?);
    let of_hooks = ["recvmsg", "sendmsg", "connect"]
        .map(|hook| ["4", "6"].map(|family| dir.join(format!("dns_{hook}{family}"))));
    let on_lo = dir.join("dns-queries-1");
    let pinned = [of_hooks.as_flattened(), &[on_lo]].concat();
    for pin in &pinned {
        fs::remove_file(pin).with_context(|| format!("remove {}", pin.display()))?;
    }
    dns.fixture.wait("they are pinned again", || {
        dns.answered_by(&APP, VIP[0], capture(VIP[0]))?;
        Ok(pinned.iter().all(|pin| pin.exists()))
    })?;
    ensure!(places.log().contains("was gone: made it again"));
    // They outlive the agent.
    dns.fixture.agent.end(Signal::SIGKILL)?;
    dns.answered_by(&APP, VIP[0], capture(VIP[0]))
}

kernel_test!(what_could_not_be_attached_is_attached_later);
fn what_could_not_be_attached_is_attached_later() -> Result<()> {
    let dns = DnsFixture::new(&[VIP[0]])?;
    dns.enroll(&dns.manifest(&[]))?;
    let places = &dns.fixture.agent.places;
    let bpffs = places.bpffs.display().to_string();
    run(&format!("mount -o remount,ro {bpffs}"))?;
    let manifest = dns.manifest(&["--redirect-dns"]);
    dns.fixture.lab.write_manifest("app", &manifest)?;
    let problem = "capture its DNS queries over UDP";
    dns.fixture
        .wait("the problem", || Ok(places.problems()?.contains(problem)))?;
    run(&format!("mount -o remount,rw {bpffs}"))?;
    // Another load is tried ten seconds after one that has failed.
    until(Duration::from_secs(30), "no problem", || {
        Ok(!places.problems()?.contains(problem))
    })?;
    dns.answered_by(&APP, VIP[0], capture(VIP[0]))
}
