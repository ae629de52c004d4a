//! Sidecars whose listeners are MPTCP sockets, as Go makes them since 1.24. No map of sockets can hold these, so a program at
//! the pod's interfaces gives them inbound connections.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, nothing_remains},
    protocol::{APP, Connected, Dial, Listen, PROXY, ROOT},
    wait::eventually,
};
use nix::sys::signal::Signal;

use crate::fixture::{POD, PodFixture, VIP, at, original};

fn listen(actor: &Actor, address: &str, port: u16, mptcp: bool) -> Result<usize> {
    actor.listen_group(Listen {
        address: at(address, port),
        owner: PROXY,
        sockets: 1,
        v6_only: true,
        transparent: false,
        mptcp,
    })
}

/// The sidecar's listeners at both of its ports, for both families.
fn sidecar(fixture: &PodFixture, mptcp: bool) -> Result<Actor> {
    let actor = fixture.pod.actor()?;
    for address in ["0.0.0.0", "::"] {
        for port in [15001, 15006] {
            listen(&actor, address, port, mptcp)?;
        }
    }
    actor.listen(&APP, at("0.0.0.0", 80))?;
    actor.listen(&APP, at("::", 80))?;
    Ok(actor)
}

fn inbound_arrives(fixture: &PodFixture) -> Result<bool> {
    for own in POD {
        for port in [80, 8080] {
            let to = at(own, port);
            let made = match fixture.outside.dial(Dial::new(&ROOT, to))? {
                Ok(made) => made,
                Err(errno) => {
                    eprintln!("{to}: errno {errno}");
                    return Ok(false);
                }
            };
            ensure!(made.accepted_by == 15006, "{made:?}");
            ensure!(original(&made.server, to) == Ok(to), "{made:?}");
            ensure!(made.server.peer == made.client.local, "{made:?}");
        }
    }
    Ok(true)
}

fn outbound_arrives(fixture: &PodFixture) -> Result<()> {
    for vip in VIP {
        let made = fixture.client.connect(&APP, at(vip, 80))?;
        ensure!(made.accepted_by == 15001, "{made:?}");
        ensure!(
            original(&made.server, at(vip, 80)) == Ok(at(vip, 80)),
            "{made:?}"
        );
    }
    // There is no target that only this connection has.
    let to = at(VIP[1], 80);
    let mut from_loopback = Dial::new(&APP, to);
    from_loopback.source = Some(at("::1", 0));
    let made = fixture.client.dial(from_loopback)?;
    let is_sidecars =
        |it: &Connected| it.accepted_by == 15001 && original(&it.server, to) == Ok(to);
    ensure!(made.as_ref().is_ok_and(is_sidecars), "{made:?}");
    for own in POD {
        let made = fixture.client.connect(&PROXY, at(own, 80))?;
        ensure!(made.accepted_by == 15006, "{made:?}");
    }
    Ok(())
}

/// No map holds its sockets, so the agent lists them at intervals.
fn wait_state(fixture: &PodFixture, state: &str) -> Result<()> {
    eventually(Duration::from_secs(15), || {
        let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
        ensure!(pod["sidecar"]["state"] == state, "{pod:#}");
        ensure!(pod["listener"] == (state == "up"), "{pod:#}");
        ensure!(pod["outbound_listener"] == (state == "up"), "{pod:#}");
        Ok(())
    })
}

kernel_test!(both_directions_reach_it);
/// One that listens before its pod is enrolled, after it, and while an agent starts.
fn both_directions_reach_it() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let first = sidecar(&fixture, true)?;
    fixture.enroll(&[])?;
    fixture.wait("inbound connections arrive", || inbound_arrives(&fixture))?;
    outbound_arrives(&fixture)?;
    wait_state(&fixture, "up")?;
    drop(first);
    let refused = fixture.outside.dial(Dial::new(&ROOT, at(POD[0], 80)))?;
    ensure!(refused == Err(libc::ECONNREFUSED), "{refused:?}");
    let why = fixture.agent.places.output(&["why", "test/app"])?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(why.contains("no-listener"), "{why}");
    wait_state(&fixture, "down")?;
    let _second = sidecar(&fixture, true)?;
    fixture.wait("inbound connections arrive", || inbound_arrives(&fixture))?;
    outbound_arrives(&fixture)?;
    fixture.agent.end(Signal::SIGTERM)?;
    ensure!(inbound_arrives(&fixture)?, "without an agent");
    fixture.agent = Agent::start(&fixture.agent.places)?;
    fixture.enroll(&[])?;
    ensure!(inbound_arrives(&fixture)?, "with another agent");
    fixture.lab.release("app")?;
    let direct = fixture.outside.connect(&ROOT, at(POD[0], 80))?;
    ensure!(direct.accepted_by == 80, "{direct:?}");
    nothing_remains(&fixture.agent.places)
}

kernel_test!(the_program_goes_when_the_sidecar_has_tcp_listeners);
fn the_program_goes_when_the_sidecar_has_tcp_listeners() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let programs = || -> Result<usize> {
        let pinned = fixture.agent.places.bpffs.join("sidetrack");
        let found = lab::command::run(&format!("find {} -name forward-*", pinned.display()))?;
        Ok(found.lines().count())
    };
    let mptcp = sidecar(&fixture, true)?;
    fixture.enroll(&[])?;
    fixture.wait("the interface has the program", || Ok(programs()? == 1))?;
    drop(mptcp);
    let _tcp = sidecar(&fixture, false)?;
    fixture.wait("the program is gone", || Ok(programs()? == 0))?;
    ensure!(inbound_arrives(&fixture)?);
    outbound_arrives(&fixture)
}
