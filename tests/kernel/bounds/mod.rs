//! What happens at the limits, and what connections that get nowhere leave behind.

use std::{
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::product::{Maps, Pins, Table, sys};
use lab::{
    actor::Actor,
    agent::{Agent, Places},
    command::run,
    network::{Lab, PodNet, manifest},
    protocol::{APP, Dial, PROXY, ROOT, Request},
    sidecar,
};
use serde_json::Value;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::{CountKey, ListenerKey},
    names::{self, HANDSHAKE_SHARE},
    pod::{NAME_LEN, NAMESPACE_LEN, Pod, Route, RouteKey, UID_LEN},
    rule::Rule,
};

use crate::{OwnTest, fixture::at, lifecycle::Place};

const VIP: &str = "10.109.118.31";
/// Above the cookie of every namespace there is.
const NOBODY: u64 = 1 << 60;

pub fn tests() -> Vec<(&'static str, OwnTest)> {
    vec![
        ("bounds::one_pod_has_its_share_of_handshakes", share),
        ("bounds::a_client_that_is_killed", killed_client),
        ("bounds::a_sidecar_that_resets", resetting_sidecar),
        ("bounds::a_sidecar_that_hangs", hanging_sidecar),
        ("bounds::bare_syns_make_no_rows", bare_syns),
        ("bounds::rows_that_nobody_withdraws", orphans),
        ("bounds::no_room_for_a_pod", full_of_pods),
        ("bounds::no_room_for_a_policy", full_of_policies),
        ("bounds::no_room_for_routes", full_of_routes),
        ("bounds::no_room_for_listeners", full_of_listeners),
        ("bounds::no_room_for_counters", full_of_counters),
    ]
}

fn maps(places: &Places) -> Result<Maps> {
    Maps::open(&Pins::new(&places.bpffs)?)
}

/// Waits until no handshake is in flight, and none is counted.
fn wait_no_handshakes(maps: &Maps) -> Result<()> {
    let start = Instant::now();
    loop {
        let rows = maps.handshakes.keys()?.len();
        let count = maps.handshake_count.get(&0)?.unwrap_or_default();
        let by_pod: Vec<(u64, u64)> = maps.handshakes_by_pod.rows()?;
        if rows == 0 && count == 0 && by_pod.iter().all(|(_, count)| *count == 0) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "{rows} rows, counted {count}, by pod {by_pod:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Drops or resets what comes to the sidecar's outbound port.
fn filter(pod: &PodNet, what: &str, target: &str) -> Result<()> {
    run(&format!(
        "ip netns exec {} iptables -{what} INPUT -p tcp --syn --dport 15001 -j {target}",
        pod.netns
    ))
    .map(drop)
}

fn taken_by(client: &Actor) -> Result<Result<u16, i32>> {
    let connected = client.dial(Dial::new(&APP, at(VIP, 80)))?;
    Ok(connected.map(|connected| connected.accepted_by))
}

/// The problems that `sidetrack status` lists.
fn problems(places: &Places) -> Result<String> {
    Ok(places.json(&["status", "-o", "json"])?["problems"].to_string())
}

/// Waits until a problem is listed; maps are counted every 5 s.
fn wait_problem(places: &Places, wanted: &str) -> Result<String> {
    let start = Instant::now();
    loop {
        let problems = problems(places)?;
        if problems.contains(wanted) {
            return Ok(problems);
        }
        if start.elapsed() > Duration::from_secs(8) {
            bail!("no problem {wanted:?}: {problems}");
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn share() -> Result<()> {
    const MORE: usize = 500;
    let share = HANDSHAKE_SHARE as usize;
    let mut lab = Lab::new()?;
    let hostile = lab.pod("hostile", 2)?;
    let other = lab.pod("other", 3)?;
    for (name, pod) in [("hostile", &hostile), ("other", &other)] {
        lab.write_manifest(name, &manifest(name, pod, &[]))?;
    }
    let agent = Agent::start(lab.places())?;
    let maps = maps(lab.places())?;
    for name in ["test/hostile", "test/other"] {
        agent.places.wait_enrolled(name)?;
    }
    let _sidecars = [sidecar::start(&hostile, &[])?, sidecar::start(&other, &[])?];
    filter(&hostile, "A", "DROP")?;
    let flooder = hostile.actor()?;
    let flooded = flooder.flood(at(VIP, 80), share + MORE)?;
    ensure!(
        flooded.pending == share && flooded.refused == MORE,
        "{flooded:?} of {}",
        share + MORE
    );
    // The others go on.
    let client = other.actor()?;
    for _ in 0..20 {
        ensure!(taken_by(&client)? == Ok(15001), "the other pod");
    }
    // It is told, with the pod's name.
    let told = wait_problem(&agent.places, "connections wait for its sidecar")?;
    ensure!(told.contains("pod test/hostile: 8192"), "{told}");
    // A successor finds the counts right.
    drop(agent);
    let agent = Agent::start(lab.places())?;
    let cookie = agent.places.pod("test/hostile")?.context("the pod")?["netns"]["cookie"]
        .as_u64()
        .context("its cookie")?;
    let counted = maps.handshakes_by_pod.get(&cookie)?;
    ensure!(counted == Some(share as u64), "{counted:?}");
    // A count that is far off is corrected.
    drop(agent);
    for wrong in [60_000, 5000_u64.wrapping_neg()] {
        maps.handshakes_by_pod.insert(&cookie, &wrong)?;
        let agent = Agent::start(lab.places())?;
        let counted = maps.handshakes_by_pod.get(&cookie)?;
        ensure!(counted == Some(share as u64), "{wrong} became {counted:?}");
        drop(agent);
    }
    drop(flooder);
    wait_no_handshakes(&maps)?;
    filter(&hostile, "D", "DROP")?;
    ensure!(
        taken_by(&hostile.actor()?)? == Ok(15001),
        "once it has ended"
    );
    // The pod takes its count with it.
    let agent = Agent::start(lab.places())?;
    lab.remove_manifest("hostile")?;
    agent.places.wait_rows("HANDSHAKES_BY_POD", 1)
}

/// A pod whose sidecar does not hear of a number of connections, and the client that waits for them.
fn waiting(connections: usize) -> Result<(Place, Actor, Maps, Actor)> {
    let place = Place::new()?;
    let sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    filter(&place.pod, "A", "DROP")?;
    let client = place.pod.actor()?;
    let flooded = client.flood(at(VIP, 80), connections)?;
    ensure!(flooded.pending == connections, "{flooded:?}");
    ensure!(
        maps.handshakes.keys()?.len() == connections,
        "rows while they wait"
    );
    Ok((place, sidecar, maps, client))
}

fn killed_client() -> Result<()> {
    let (_place, _sidecar, maps, client) = waiting(50)?;
    // By SIGKILL, with all its sockets.
    drop(client);
    wait_no_handshakes(&maps)
}

fn resetting_sidecar() -> Result<()> {
    const CONNECTIONS: usize = 50;
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    filter(&place.pod, "A", "REJECT --reject-with tcp-reset")?;
    let client = place.pod.actor()?;
    // The sockets stay open; it is the reset that takes the rows away.
    let flooded = client.flood(at(VIP, 80), CONNECTIONS)?;
    ensure!(flooded.failed == 0, "{flooded:?}");
    wait_no_handshakes(&maps(&place.agent.places)?)?;
    let counted = count(&place, Rule::AllOutbound)?;
    ensure!(counted == CONNECTIONS as u64, "{counted} were redirected");
    Ok(())
}

/// Connections that a rule decided.
fn count(place: &Place, rule: Rule) -> Result<u64> {
    let counts = maps(&place.agent.places)?.counts.sums()?;
    let of_rule = counts.iter().filter(|(key, _)| key.rule == rule as u32);
    Ok(of_rule.map(|(_, count)| count).sum())
}

/// It listens and does not accept: its backlog is full at once, further SYNs are ignored.
fn hanging_sidecar() -> Result<()> {
    const CONNECTIONS: usize = 300;
    let place = Place::new()?;
    let sidecar = place.pod.actor()?;
    sidecar.ask(&Request::Hang(at("0.0.0.0", 15001)))?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    let client = place.pod.actor()?;
    let flooded = client.flood(at(VIP, 80), CONNECTIONS)?;
    ensure!(flooded.pending == CONNECTIONS, "{flooded:?}");
    let waiting = maps.handshakes.keys()?.len();
    ensure!(waiting > CONNECTIONS / 2, "{waiting} rows while they wait");
    drop(client);
    wait_no_handshakes(&maps)
}

/// As if the programs had been away when connections closed: what is left of them goes, what waits
/// stays.
fn orphans() -> Result<()> {
    const CONNECTIONS: usize = 50;
    const ORPHANS: u16 = 300;
    let (place, _sidecar, maps, client) = waiting(CONNECTIONS)?;
    let (mut key, mut row) = maps.handshakes.rows()?.pop().context("a row")?;
    for number in 1..=ORPHANS {
        key.client_port = number;
        row.client_cookie = NOBODY + u64::from(number);
        maps.handshakes.insert(&key, &row)?;
    }
    let counted = (CONNECTIONS + usize::from(ORPHANS)) as u64;
    maps.handshake_count.insert(&0, &counted)?;
    maps.handshakes_by_pod.insert(&key.netns, &counted)?;
    let start = Instant::now();
    while maps.handshakes.keys()?.len() != CONNECTIONS {
        ensure!(
            start.elapsed() < Duration::from_secs(15),
            "{} rows",
            maps.handshakes.keys()?.len()
        );
        thread::sleep(Duration::from_millis(100));
    }
    // Two more looks.
    thread::sleep(Duration::from_secs(11));
    ensure!(
        maps.handshakes.keys()?.len() == CONNECTIONS,
        "those that wait"
    );
    let log = place.agent.places.log();
    ensure!(log.contains("300 handshakes were left"), "{log}");
    drop(client);
    wait_no_handshakes(&maps)
}

/// Rows are made in connect, and a raw socket does not connect.
fn bare_syns() -> Result<()> {
    const SYNS: u16 = 500;
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    let raw = place.pod.actor()?;
    let own: SocketAddrV4 = "10.77.0.2:40000".parse()?;
    let loopback: SocketAddrV4 = "127.0.0.1:40000".parse()?;
    for (from, to) in [
        (loopback, "127.0.0.1:15001".parse()?),
        (own, "10.77.0.2:15006".parse()?),
        // From others, as far as the source tells.
        (own, "10.77.0.2:15001".parse()?),
    ] {
        raw.ask(&Request::Syns {
            from,
            to,
            count: SYNS,
        })?;
        ensure!(maps.handshakes.keys()?.is_empty(), "rows for SYNs to {to}");
    }
    ensure!(taken_by(&place.client)? == Ok(15001), "connections go on");
    wait_no_handshakes(&maps)
}

/// A pod's row that belongs to nobody.
fn stranger() -> Pod {
    Pod {
        policy: 0,
        flags: 0,
        netns_inode: 0,
        namespace: [0; NAMESPACE_LEN],
        name: [0; NAME_LEN],
        uid: [0; UID_LEN],
    }
}

/// Rows that the maps of pods and policies have.
const CAPACITY: u64 = 4096;

/// Fills a map up; how many rows that took.
fn fill(mut insert: impl FnMut(u64) -> std::io::Result<()>) -> Result<u64> {
    for number in 0.. {
        match insert(number) {
            Ok(()) => {}
            Err(error)
                if [libc::E2BIG, libc::ENOSPC].contains(&error.raw_os_error().unwrap_or(0)) =>
            {
                return Ok(number);
            }
            Err(error) => return Err(error).context("fill a map"),
        }
    }
    unreachable!("numbers do not end")
}

/// Adds a row, unless it is there.
fn add<K: aya::Pod, V: aya::Pod>(map: &Table<K, V>, key: &K, value: &V) -> std::io::Result<()> {
    match map.get(key)? {
        Some(_) => Ok(()),
        None => map.insert(key, value),
    }
}

/// Keeps a map full while something is tried: the agent removes pods that nobody enrolled. `test` is
/// given what makes room. `insert` leaves rows alone that are there: one that is being replaced may not
/// be counted.
fn while_full(
    insert: impl Fn(u64) -> std::io::Result<()> + Sync,
    remove: impl Fn() -> Result<()>,
    test: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let done = AtomicBool::new(false);
    let idle = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Also what came before the room that there was.
                for number in 0..CAPACITY {
                    if insert(number).is_err() {
                        break;
                    }
                }
                thread::sleep(Duration::from_micros(200));
            }
            idle.store(true, Ordering::Relaxed);
        });
        let tested = test(&|| {
            done.store(true, Ordering::Relaxed);
            while !idle.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            remove()
        });
        done.store(true, Ordering::Relaxed);
        tested
    })
}

/// Enrolls a second pod, expects it to be refused for a reason that says this, and to be enrolled when
/// `make_room` has made room.
fn refused_until(
    place: &mut Place,
    annotations: &[(&str, &str)],
    says: &str,
    make_room: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let second = place.lab.pod("second", 3)?;
    place
        .lab
        .write_manifest("second", &manifest("second", &second, annotations))?;
    let places = &place.agent.places;
    places.wait_pod("test/second", |pod| {
        pod.is_some_and(|pod| {
            pod["state"] == "rejected" && pod["reason"].to_string().contains(says)
        })
    })?;
    let told = problems(places)?;
    ensure!(told.contains("pod test/second: "), "{told}");
    // Whoever is in goes on.
    ensure!(taken_by(&place.client)? == Ok(15001), "the first pod");
    make_room()?;
    places.wait_enrolled("test/second").map(drop)
}

fn full_of_pods() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    while_full(
        |number| add(&maps.pods, &(NOBODY + number), &stranger()),
        || {
            for number in 0..CAPACITY {
                maps.pods.remove(&(NOBODY + number))?;
            }
            Ok(())
        },
        |make_room| {
            wait_problem(
                &place.agent.places,
                "map POD_BY_NETNS has 4096 of 4096 rows",
            )?;
            refused_until(&mut place, &[], "4096 sidecar pods", make_room)
        },
    )
}

fn full_of_policies() -> Result<()> {
    const FIRST: u32 = 1 << 30;
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    let some = maps.policies.rows()?.pop().context("a policy")?.1;
    let other = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    let rows = maps.ports.keys()?.len();
    while_full(
        |number| add(&maps.policies, &(FIRST + number as u32), &some),
        || {
            // What was begun is taken back.
            ensure!(maps.ports.keys()?.len() == rows, "lists without a policy");
            for number in 0..CAPACITY {
                maps.policies.remove(&(FIRST + number as u32))?;
            }
            Ok(())
        },
        |make_room| {
            wait_problem(
                &place.agent.places,
                "map POLICY_BY_ID has 4096 of 4096 rows",
            )?;
            let says = "write the policy; if a map is full";
            refused_until(&mut place, &other, says, make_room)
        },
    )
}

fn full_of_routes() -> Result<()> {
    let mut place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    let some: Route = maps.routes.rows()?.pop().context("a route")?.1;
    let key = |number: u64| RouteKey::new(NOBODY + number, Family::V4, Addr::v4([10, 0, 0, 0]), 8);
    let filled = fill(|number| maps.routes.insert(&key(number), &some))?;
    wait_problem(
        &place.agent.places,
        "map ROUTE_BY_POD has 262144 of 262144 rows",
    )?;
    // A network that the first pod comes to know of now: it does not fit, and the pod says so. What
    // the rows cannot tell is judged by the routes that are there.
    place.pod.ip("route add 10.201.0.0/16 via 10.77.0.254")?;
    let start = Instant::now();
    while !place.agent.places.log().contains("is ROUTE_BY_POD full?") {
        ensure!(
            start.elapsed() < Duration::from_secs(5),
            "nothing in the log"
        );
        thread::sleep(Duration::from_millis(50));
    }
    wait_problem(&place.agent.places, "pod test/app: ")?;
    ensure!(taken_by(&place.client)? == Ok(15001), "the first pod");
    refused_until(&mut place, &[], "is ROUTE_BY_POD full?", || {
        for number in 0..filled {
            maps.routes.remove(&key(number))?;
        }
        Ok(())
    })
}

fn full_of_listeners() -> Result<()> {
    let mut place = Place::new()?;
    let app = place.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    place.enroll(&[])?;
    let maps = maps(&place.agent.places)?;
    // Any listening socket serves to fill it.
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket) as u64;
    let key = |number: u64| ListenerKey {
        netns: NOBODY + number,
        family: 4,
        port: 1,
        slot: 0,
    };
    let filled = fill(|number| maps.listeners.insert(&key(number), &descriptor))?;
    let told = wait_problem(&place.agent.places, "map LISTENERS has 65536 of 65536 rows")?;
    ensure!(told.contains("inbound connections"), "{told}");
    // The sidecar listens and is not known: refused, never past it.
    let _sidecar = sidecar::start(&place.pod, &[])?;
    let arrive = || place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)));
    for _ in 0..10 {
        let arrived = arrive()?;
        ensure!(arrived == Err(libc::ECONNREFUSED), "{arrived:?}");
    }
    // A pod that is enrolled while the map is full, and whose sidecar listens already.
    let second = place.lab.pod("second", 3)?;
    let _other = sidecar::start(&second, &[80])?;
    place
        .lab
        .write_manifest("second", &manifest("second", &second, &[]))?;
    place.agent.places.wait_enrolled("test/second")?;
    let arrived = place.outside.dial(Dial::new(&ROOT, at("10.77.0.3", 80)))?;
    ensure!(arrived == Err(libc::ECONNREFUSED), "{arrived:?}");
    let row = place.agent.places.pod("test/app")?.context("the pod")?;
    ensure!(row["listener"] == false, "{row}");
    ensure!(row["connections"]["refused"].as_u64() >= Some(10), "{row}");
    for number in 0..filled {
        maps.listeners.remove(&key(number))?;
    }
    // It is found without its doing anything.
    let start = Instant::now();
    loop {
        if arrive()?.is_ok_and(|arrived| arrived.accepted_by == 15006) {
            return Ok(());
        }
        ensure!(start.elapsed() < Duration::from_secs(20), "still not known");
        thread::sleep(Duration::from_millis(50));
    }
}

fn full_of_counters() -> Result<()> {
    let place = Place::new()?;
    let _sidecar = sidecar::start(&place.pod, &[])?;
    place.enroll(&[])?;
    let pins = Pins::new(&place.agent.places.bpffs)?;
    let map = sys::open_pin(&pins.map(names::COUNT_BY_RULE))?;
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = cpus.trim().rsplit(['-', ',']).next().unwrap_or("0");
    let zeroes = vec![0; 8 * (last.parse::<usize>()? + 1)];
    let key = |number: u64| CountKey {
        netns: NOBODY + number,
        rule: 0,
        index: 0,
    };
    fill(|number| {
        let key = key(number);
        let bytes = sys::bytes_of(&key);
        sys::map_update(std::os::fd::AsFd::as_fd(&map), bytes, &zeroes, 0)
    })?;
    wait_problem(
        &place.agent.places,
        "map COUNT_BY_RULE has 65536 of 65536 rows",
    )?;
    // Not counted, judged all the same, both ways and by more than one rule.
    ensure!(taken_by(&place.client)? == Ok(15001), "outbound");
    let proxy = place.client.dial(Dial::new(&PROXY, at(VIP, 80)))?;
    ensure!(
        proxy.as_ref().is_ok_and(|it| it.accepted_by == 80),
        "{proxy:?}"
    );
    let arrived = place.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(
        arrived.as_ref().is_ok_and(|it| it.accepted_by == 15006),
        "{arrived:?}"
    );
    let row: Value = place
        .agent
        .places
        .pod("test/app")?
        .ok_or_else(|| anyhow!("no pod"))?;
    ensure!(row["connections"]["outbound_redirected"] == 0, "{row}");
    Ok(())
}
