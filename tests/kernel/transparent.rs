//! Mode TPROXY: the sidecar calls the app from the client's address, and the app's answers come back to it.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::Agent,
    command::run_words,
    protocol::{APP, Connected, Dial, Identity, PROXY, ROOT},
    sidecar::{listen, listen_transparently},
    wait::until,
};

use nix::sys::signal::Signal;

use crate::fixture::{POD, PodFixture, at};

const TPROXY: [(&str, &str); 1] = [("sidecar.istio.io/interceptionMode", "TPROXY")];
const MARK: u32 = 1337;
const SETTINGS: [&str; 3] = [
    "/proc/sys/net/ipv4/tcp_fwmark_accept",
    "/proc/sys/net/ipv4/fwmark_reflect",
    "/proc/sys/net/ipv6/fwmark_reflect",
];
/// An address that no process has.
const CLIENT: [&str; 2] = ["198.51.100.7", "2001:db8::7"];

/// The sidecar as injectors run it in this mode.
fn sidecar() -> Identity {
    Identity::with_gid(ROOT.uid, PROXY.gid)
}

fn call(from: &str, to: SocketAddr) -> Dial {
    let mut dial = Dial::new(&sidecar(), to);
    dial.source = Some(at(from, 0));
    dial.transparent = true;
    dial.mark = MARK;
    dial
}

fn connected(fixture: &PodFixture, dial: Dial) -> Result<Connected> {
    let what = format!("{dial:?}");
    let result = fixture.client.dial(dial)?;
    result.map_err(|errno| anyhow!("{what}: errno {errno}"))
}

/// An app and a sidecar.
fn servers(fixture: &PodFixture) -> Result<Actor> {
    let servers = fixture.pod.actor()?;
    listen(&servers, &APP, 80)?;
    for port in [15001, 15006] {
        listen_transparently(&servers, &PROXY, port)?;
    }
    Ok(servers)
}

fn leave(fixture: &PodFixture) -> Result<()> {
    fixture.lab.release("app")?;
    Ok(())
}

fn in_pod(fixture: &PodFixture, words: &[&str]) -> Result<String> {
    run_words(&[&["ip", "netns", "exec", &fixture.pod.netns], words].concat())
}

/// What the pod's network has that an agent may have changed.
fn network(fixture: &PodFixture) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for command in [
        "rule",
        "-6 rule",
        "route show table all",
        "-6 route show table all",
    ] {
        let lines = fixture.pod.ip(command)?;
        // The kernel's own may come late, and the route of IPv6 targets may go late: see `targets_v6`.
        let is_kept = |line: &&str| {
            !["proto kernel", "proto 175"]
                .iter()
                .any(|it| line.contains(it))
        };
        let lines = lines.lines().filter(is_kept);
        found.extend(lines.map(str::to_owned));
    }
    for setting in SETTINGS {
        found.push(in_pod(fixture, &["cat", setting])?);
    }
    Ok(found)
}

/// How long it tries.
const SOON: Duration = Duration::from_secs(10);

kernel_test!(the_app_sees_the_client, needs INGRESS_INTERFACE);
fn the_app_sees_the_client() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _servers = servers(&fixture)?;
    let before = network(&fixture)?;
    fixture.enroll(&TPROXY)?;
    for (from, own) in CLIENT.into_iter().zip(POD) {
        let to = at(own, 80);
        let app = connected(&fixture, call(from, to))?;
        ensure!(
            app.accepted_by == 80 && app.server.peer.ip() == at(from, 0).ip(),
            "{app:?}"
        );
        let closed = fixture.client.dial(call(from, at(own, 9)))?;
        ensure!(
            closed.as_ref().err() == Some(&libc::ECONNREFUSED),
            "{closed:?}"
        );
        // Without the mark it is one of the proxy's own calls, as from anywhere else in the pod.
        let own_call = connected(&fixture, Dial::new(&sidecar(), to))?;
        ensure!(own_call.accepted_by == 15006, "{own_call:?}");
        ensure!(
            own_call.server.local == to && own_call.client.peer == to,
            "{own_call:?}"
        );
    }
    // From outside everything goes to the sidecar, whatever the sender's address.
    let inbound = fixture.outside.connect(&ROOT, at(POD[0], 80))?;
    ensure!(inbound.accepted_by == 15006, "{inbound:?}");
    ensure!(inbound.server.local == at(POD[0], 80), "{inbound:?}");
    // That of the client itself, too.
    fixture.lab.add_outside(CLIENT[0])?;
    let mut dial = Dial::new(&ROOT, at(POD[0], 80));
    dial.source = Some(at(CLIENT[0], 0));
    let inbound = fixture.outside.dial(dial)?;
    let inbound = inbound.map_err(|errno| anyhow!("inbound: errno {errno}"))?;
    ensure!(inbound.accepted_by == 15006, "{inbound:?}");
    ensure!(
        inbound.server.peer.ip() == at(CLIENT[0], 0).ip(),
        "{inbound:?}"
    );
    leave(&fixture)?;
    let after = network(&fixture)?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

kernel_test!(what_the_pod_had_stays, needs INGRESS_INTERFACE);
/// Rules and routes of istio-init, or settings of a platform team, are there before and after.
fn what_the_pod_had_stays() -> Result<()> {
    let fixture = PodFixture::new()?;
    for command in [
        "rule add fwmark 1337 lookup 133",
        "route add local default dev lo table 133",
        "-6 rule add fwmark 1337 lookup 133",
        "-6 route add local default dev lo table 133",
    ] {
        fixture.pod.ip(command)?;
    }
    let set = "echo 1 > /proc/sys/net/ipv4/tcp_fwmark_accept";
    in_pod(&fixture, &["sh", "-c", set])?;
    let _servers = servers(&fixture)?;
    let before = network(&fixture)?;
    fixture.enroll(&TPROXY)?;
    connected(&fixture, call(CLIENT[0], at(POD[0], 80)))?;
    leave(&fixture)?;
    let after = network(&fixture)?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}

kernel_test!(rules_that_the_pod_removes_come_back, needs INGRESS_INTERFACE);
fn rules_that_the_pod_removes_come_back() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _servers = servers(&fixture)?;
    fixture.enroll(&TPROXY)?;
    let to = at(POD[0], 80);
    connected(&fixture, call(CLIENT[0], to))?;
    for command in ["rule del fwmark 1337", "route flush table 133"] {
        fixture.pod.ip(command)?;
        until(SOON, command, || {
            Ok(fixture.client.dial(call(CLIENT[0], to))?.is_ok())
        })?;
    }
    Ok(())
}

kernel_test!(other_modes_have_no_return_routes, needs INGRESS_INTERFACE);
fn other_modes_have_no_return_routes() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let before = network(&fixture)?;
    fixture.enroll(&TPROXY)?;
    until(SOON, "nothing was added", || {
        Ok(before != network(&fixture)?)
    })?;
    fixture.enroll(&[])?;
    until(SOON, "the routes of mode TPROXY remain", || {
        Ok(before == network(&fixture)?)
    })
    .map(drop)
}

kernel_test!(an_agent_that_was_killed_leaves_what_the_next_one_removes, needs INGRESS_INTERFACE);
fn an_agent_that_was_killed_leaves_what_the_next_one_removes() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _servers = servers(&fixture)?;
    let before = network(&fixture)?;
    fixture.enroll(&TPROXY)?;
    fixture.agent.end(Signal::SIGKILL)?;
    let to = at(POD[0], 80);
    connected(&fixture, call(CLIENT[0], to))?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    connected(&fixture, call(CLIENT[0], to))?;
    leave(&fixture)?;
    let after = network(&fixture)?;
    ensure!(before == after, "before: {before:#?}\nafter: {after:#?}");
    Ok(())
}
