//! An agent that starts again replaces the programs inside the links that are there. At no time is
//! nothing attached.

use std::{
    os::fd::AsFd as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, Places},
    product::{CGROUP_HOOKS, Pins, hook_of_pod, sys},
    protocol::{APP, Dial, ROOT},
    sidecar,
    wait::eventually,
};
use nix::sys::signal::Signal;

use crate::fixture::{POD, PodFixture, VIP, at};

/// A link and the program in it.
#[derive(Debug)]
struct Attached {
    what: String,
    link: u32,
    program: u32,
}

/// All links: one for each hook, and the pod's.
fn attached(places: &Places) -> Result<Vec<Attached>> {
    let pins = Pins::new(&places.bpffs)?;
    let pods = places.map("POD_BY_NETNS")?;
    let cookie = pods.first().context("the pod's row")?["formatted"]["key"]
        .as_u64()
        .context("its cookie")?;
    let hooks = CGROUP_HOOKS
        .iter()
        .map(|hook| (hook.name.to_owned(), hook_of_pod(&pins, hook.name, cookie)));
    hooks
        .chain([("sk_lookup".to_owned(), pins.pod_link(cookie))])
        .map(|(what, path)| {
            let pin = sys::open_pin(&path).with_context(|| format!("open {}", path.display()))?;
            let info = sys::link_info(pin.as_fd())?;
            Ok(Attached {
                what,
                link: info.id,
                program: info.prog_id,
            })
        })
        .collect()
}

kernel_test!(programs_are_replaced_in_their_links);
fn programs_are_replaced_in_their_links() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    let PodFixture {
        client,
        outside,
        agent,
        ..
    } = &mut fixture;
    let done = AtomicBool::new(false);
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let traffic = |from: &Actor, dial: Dial, by: u16, count: &AtomicUsize| -> Result<()> {
        while !done.load(Ordering::Relaxed) {
            for result in from.dial_all(vec![dial.clone(); 20])? {
                let connected = result.map_err(|errno| anyhow!("errno {errno}"))?;
                ensure!(connected.accepted_by == by, "it slipped: {connected:?}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let outbound = Dial::new(&APP, at(VIP[0], 80));
    let inbound = Dial::new(&ROOT, at(POD[0], 80));
    thread::scope(|scope| {
        let (traffic, counts) = (&traffic, &counts);
        let threads = [
            scope.spawn(move || traffic(client, outbound, 15001, &counts[0])),
            scope.spawn(move || traffic(outside, inbound, 15006, &counts[1])),
        ];
        let restarted = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGKILL]
            .into_iter()
            .try_for_each(|signal| restart(agent, signal, counts));
        done.store(true, Ordering::Relaxed);
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow!("the traffic panicked"))?
                .context("while programs were replaced")?;
        }
        restarted
    })
}

/// Restarts the agent in the middle of traffic and compares the links before and after.
fn restart(agent: &mut Agent, signal: Signal, counts: &[AtomicUsize; 2]) -> Result<()> {
    wait_traffic(counts)?;
    let before = attached(&agent.places)?;
    agent.end(signal)?;
    *agent = Agent::start(&agent.places)?;
    agent.places.wait_enrolled("test/app")?;
    wait_traffic(counts)?;
    let after = attached(&agent.places)?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(
            before.link == after.link,
            "{} has another link after {signal}: {before:?}, {after:?}",
            before.what
        );
        ensure!(
            before.program != after.program,
            "{} has the same program after {signal}: {before:?}, {after:?}",
            before.what
        );
    }
    Ok(())
}

/// Waits until both directions have connected again.
fn wait_traffic(counts: &[AtomicUsize; 2]) -> Result<()> {
    let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let before = now();
    eventually(Duration::from_secs(5), || {
        ensure!(
            !(now().iter().zip(before).any(|(now, before)| *now <= before)),
            "no traffic"
        );
        Ok(())
    })
}
