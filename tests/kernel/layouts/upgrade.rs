//! The older layout is removed while traffic continues.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    actor::Actor,
    agent::{Agent, dump_of, nothing_is_left},
    network::PodNet,
    node::VIP,
    protocol::{APP, Dial, Identity, PROXY, ROOT},
};
use nix::sys::signal::Signal;
use sidetrack_common::{
    names,
    pod::{POD_ANY_ADDRESS, Pod},
};

use super::{OLDER, OURS, end_as, inbound, redirects, right, six, version};
use crate::fixture::{self, PodFixture, at, original};

kernel_test!(an_older_one_is_left_under_traffic);
fn an_older_one_is_left_under_traffic() -> Result<()> {
    let (mut fixture, _sidecar) = six::started(&[])?;
    let old = fixture.pod.actor()?;
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    let still_right = |fixture: &PodFixture| -> Result<()> {
        for again in old.again()? {
            right(again)?;
        }
        ensure!(old.echo()? >= 1);
        inbound(fixture)
    };
    end_as(&mut fixture, OLDER)?;
    still_right(&fixture).context("by what is attached")?;
    let done = AtomicBool::new(false);
    let client = &fixture.client;
    let outside = &fixture.outside;
    let log = &fixture.agent.places;
    let (dialed, agent) = thread::scope(|scope| {
        let busy = scope.spawn(|| -> Result<usize> {
            let mut dialed = 0;
            let dials = vec![Dial::new(&APP, at(VIP, 80)); 10];
            while !done.load(Ordering::Relaxed) {
                for connected in client.dial_all(dials.clone())? {
                    right(connected).with_context(|| format!("after {dialed}"))?;
                    dialed += 1;
                }
            }
            Ok(dialed)
        });
        let arriving = scope.spawn(|| -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                let inbound = outside.connect(&ROOT, at("10.77.0.2", 80))?;
                ensure!(inbound.accepted_by == 15006, "{inbound:?}");
                thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        let agent = Agent::start(log);
        let start = Instant::now();
        let retired = || log.log().contains("removed what redirects");
        while !retired() && start.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(300));
        done.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("the traffic panicked");
        let dialed = busy.join().map_err(panicked)?.context("the busy client")?;
        arriving.join().map_err(panicked)?.context("arrivals")?;
        anyhow::Ok((dialed, agent?))
    })?;
    fixture.agent = agent;
    ensure!(dialed > 50, "only {dialed} connections");
    ensure!(!redirects(&fixture), "{}", fixture.agent.places.log());
    ensure!(
        version(&fixture, OLDER).exists(),
        "it answers for the old sockets"
    );
    still_right(&fixture).context("after the retirement")?;
    // New connections are evaluated by the new layout alone.
    right(old.hold(Dial::new(&APP, at(VIP, 80)))?)?;
    for again in old.again()? {
        let again = again.map_err(|errno| anyhow!("errno {errno}"))?;
        ensure!(again.client.original_v4 == Ok(at(VIP, 80)), "{again:?}");
    }
    // Its hooks are not mistaken for another program's.
    let problems = fixture.agent.places.json(&["status", "-o", "json"])?["problems"].clone();
    ensure!(problems.as_array().is_some_and(Vec::is_empty), "{problems}");
    // The old pod ends, and with it the old layout.
    fixture.lab.remove_manifest("app")?;
    fixture.wait("the old layout is gone", || {
        Ok(!version(&fixture, OLDER).exists())
    })?;
    fixture.enroll(&[])?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)
}

/// Rows that say what a pod's connections are to do, and whose they are.
const OF_PODS: [&str; 9] = [
    names::POLICY_BY_ID,
    names::PORT_RULES,
    names::RANGE_RULES,
    names::OWNER_RULES,
    names::ROUTE_BY_POD,
    names::IFACE_BY_POD,
    names::LISTENERS,
    names::SIDECAR_BY_POD,
    names::BEFORE_SIDECAR,
];

/// The rows of a layout's maps, by the map's name now, as bytes.
fn rows(fixture: &PodFixture, layout: u32) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    let maps = version(fixture, layout).join("maps");
    let rows_of = |name: &&'static str| {
        let pinned = if layout == OLDER {
            six::name_of(name)
        } else {
            name
        };
        let rows = dump_of(&maps.join(pinned))?;
        let bytes = rows
            .iter()
            .map(|row| format!("{} {}", row["key"], row["value"]));
        Ok((*name, bytes.collect()))
    };
    OF_PODS.iter().map(rows_of).collect()
}

/// Connections that stay open, one for each way in which the kernel keeps their names: who holds it, where it arrives,
/// and what it was made for.
fn held(fixture: &PodFixture) -> Result<Vec<(Actor, u16, SocketAddr)>> {
    let own = at("10.77.0.2", 80);
    let ways = [
        // A target of its own, and a record.
        (&fixture.pod, APP, 15001, at(VIP, 80)),
        (&fixture.pod, APP, 15001, at(fixture::VIP[1], 80)),
        (&fixture.pod, PROXY, 15006, own),
        (&fixture.lab.outside(), ROOT, 15006, own),
    ];
    let hold = |(from, who, by, to): (&PodNet, Identity, u16, SocketAddr)| {
        let holder = from.actor()?;
        let connected = holder.hold(Dial::new(&who, to))?;
        connected.map_err(|errno| anyhow!("{to}: errno {errno}"))?;
        Ok((holder, by, to))
    };
    ways.into_iter().map(hold).collect()
}

/// Checks what both ends of held connections see, and that bytes arrive.
fn all_right(held: &[(Actor, u16, SocketAddr)]) -> Result<()> {
    for (holder, by, to) in held {
        let seen = holder.again()?.into_iter().next().context("a connection")?;
        let seen = seen.map_err(|errno| anyhow!("{to}: errno {errno}"))?;
        ensure!(
            seen.accepted_by == *by && seen.client.peer == *to,
            "{to}: {seen:?}"
        );
        ensure!(original(&seen.server, *to) == Ok(*to), "{to}: {seen:?}");
        ensure!(holder.echo()? == 1, "{to}: no answer");
    }
    Ok(())
}

kernel_test!(layout_six_is_taken_over_whole);
/// The rows of its pods are made again, what was connected keeps its names, and its pins go.
fn layout_six_is_taken_over_whole() -> Result<()> {
    let (mut fixture, _sidecar) = six::started(&[
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "3306,8443"),
        (
            "traffic.sidecar.istio.io/excludeOutboundIPRanges",
            "10.99.0.0/16,fd88::/64",
        ),
        ("traffic.sidecar.istio.io/excludeInterfaces", "eth9"),
    ])?;
    fixture.lab.add_outside(fixture::VIP[1])?;
    let held = held(&fixture)?;
    end_as(&mut fixture, OLDER)?;
    six::has_all(&version(&fixture, OLDER).join("maps"))?;
    let before = rows(&fixture, OLDER)?;
    let pods_before = six::pods(&version(&fixture, OLDER).join("maps"))?.rows()?;
    for map in [names::PORT_RULES, names::RANGE_RULES, names::LISTENERS] {
        ensure!(!before[map].is_empty(), "{map} has no rows: {before:?}");
    }
    all_right(&held).context("by what is attached")?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    fixture.agent.places.wait_enrolled("test/app")?;
    let after = rows(&fixture, OURS)?;
    let bytes = |pods: &[(u64, Pod)]| -> Vec<_> {
        let with = pods.iter().map(|(cookie, row)| {
            // Meanwhile a link-local address may have become one of the pod's.
            let flags = row.flags & !six::FILTERS_ADDRESSES & !POD_ANY_ADDRESS;
            (*cookie, bytemuck::bytes_of(&Pod { flags, ..*row }).to_vec())
        });
        with.collect()
    };
    let pods = fixture.lab.places().maps()?.pods.rows()?;
    ensure!(
        bytes(&pods) == bytes(&pods_before),
        "{pods_before:?} became {pods:?}"
    );
    for (map, rows) in &before {
        let mut changed: Vec<_> = rows.difference(&after[map]).collect();
        // Meanwhile a link-local address may have become one of the pod's.
        if *map != names::ROUTE_BY_POD {
            changed.extend(after[map].difference(rows));
        }
        ensure!(changed.is_empty(), "{map}: {changed:#?}");
    }
    fixture.wait("it is left", || Ok(!redirects(&fixture)))?;
    all_right(&held).context("by the remains of layout 6")?;
    right(fixture.client.dial(Dial::new(&APP, at(VIP, 80)))?)?;
    inbound(&fixture)?;
    // The next agent finds them as well.
    fixture.agent.end(Signal::SIGKILL)?;
    fixture.agent = Agent::start(fixture.lab.places())?;
    all_right(&held).context("after another agent")?;
    fixture.lab.release("app")?;
    let lo = fixture.pod.ip("-6 address show dev lo")?;
    ensure!(!lo.contains("::6/128"), "sidetrack has added it: {lo}");
    fixture.wait("its pins are gone", || {
        Ok(!version(&fixture, OLDER).exists())
    })?;
    // A target is kept as long as a socket has it.
    drop(held);
    nothing_is_left(&fixture.agent.places)
}
