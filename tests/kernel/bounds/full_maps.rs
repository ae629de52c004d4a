//! Maps that are full: a pod is refused with a reason, and enrolled once there is room.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use bytemuck::Zeroable as _;
use lab::{
    agent::Places,
    node::VIP,
    product::{Pins, sys},
    protocol::{APP, Dial, PROXY, ROOT},
    sidecar,
    wait::eventually,
};
use serde_json::Value;
use sidetrack_common::{
    addr::{Addr, Family},
    conn::ListenerKey,
    count::CountKey,
    names,
    pod::{Pod, Route, RouteKey},
};

use super::{
    CAPACITY, UNUSED_COOKIE, accepted_by, add, fill, maps, refused_until, wait_problem, while_full,
};
use crate::fixture::{PodFixture, at};

kernel_test!(no_room_for_a_pod);
fn no_room_for_a_pod() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let maps = maps(&fixture.agent.places)?;
    while_full(
        |number| add(&maps.pods, &(UNUSED_COOKIE + number), &Pod::zeroed()),
        || {
            for number in 0..CAPACITY {
                maps.pods.remove(&(UNUSED_COOKIE + number))?;
            }
            Ok(())
        },
        |make_room| {
            wait_problem(
                &fixture.agent.places,
                "map POD_BY_NETNS has 4096 of 4096 rows",
            )?;
            refused_until(&mut fixture, &[], "4096 sidecar pods", make_room)
        },
    )
}

kernel_test!(no_room_for_a_policy);
fn no_room_for_a_policy() -> Result<()> {
    const FIRST: u32 = 1 << 30;
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let maps = maps(&fixture.agent.places)?;
    let some = maps.policies.rows()?.pop().context("a policy")?.1;
    let other = [("traffic.sidecar.istio.io/excludeOutboundPorts", "3306")];
    let rows = maps.ports.keys()?.len();
    while_full(
        |number| add(&maps.policies, &(FIRST + number as u32), &some),
        || {
            // What was begun is removed again.
            ensure!(maps.ports.keys()?.len() == rows, "lists without a policy");
            for number in 0..CAPACITY {
                maps.policies.remove(&(FIRST + number as u32))?;
            }
            Ok(())
        },
        |make_room| {
            wait_problem(
                &fixture.agent.places,
                "map POLICY_BY_ID has 4096 of 4096 rows",
            )?;
            let says = "write the policy; if a map is full";
            refused_until(&mut fixture, &other, says, make_room)
        },
    )
}

kernel_test!(no_room_for_routes);
fn no_room_for_routes() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    let maps = maps(&fixture.agent.places)?;
    let some: Route = maps.routes.rows()?.pop().context("a route")?.1;
    let key = |number: u64| {
        RouteKey::new(
            (UNUSED_COOKIE + number, 0),
            Family::V4,
            Addr::v4([10, 0, 0, 0]),
            8,
        )
    };
    let filled = fill(|number| maps.routes.insert(&key(number), &some))?;
    wait_problem(
        &fixture.agent.places,
        "map ROUTE_BY_POD has 131072 of 131072 rows",
    )?;
    // A network that the first pod gets now: it does not fit, and the pod says so. What
    // the rows do not have is evaluated by the routes that are there.
    fixture.pod.ip("route add 10.201.0.0/16 via 10.77.0.254")?;
    eventually(Duration::from_secs(5), || {
        ensure!(
            fixture.agent.places.log().contains("is ROUTE_BY_POD full?"),
            "nothing in the log"
        );
        Ok(())
    })?;
    wait_problem(&fixture.agent.places, "pod test/app: ")?;
    ensure!(accepted_by(&fixture.client)? == Ok(15001), "the first pod");
    refused_until(&mut fixture, &[], "is ROUTE_BY_POD full?", || {
        for number in 0..filled {
            maps.routes.remove(&key(number))?;
        }
        Ok(())
    })
}

kernel_test!(no_room_for_listeners);
fn no_room_for_listeners() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let app = fixture.pod.actor()?;
    sidecar::listen(&app, &APP, 80)?;
    fixture.enroll(&[])?;
    let maps = maps(&fixture.agent.places)?;
    // Any listening socket serves to fill it.
    let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&socket) as u64;
    let key = |number: u64| ListenerKey {
        netns: UNUSED_COOKIE + number,
        family: 4,
        port: 1,
        slot: 0,
    };
    let filled = fill(|number| maps.listeners.insert(&key(number), &descriptor))?;
    let problem = wait_problem(
        &fixture.agent.places,
        "map LISTENERS has 131072 of 131072 rows",
    )?;
    ensure!(problem.contains("inbound connections"), "{problem}");
    // The sidecar listens and is not known: refused, never past it.
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    let arrive = || fixture.outside.dial(Dial::new(&ROOT, at("10.77.0.2", 80)));
    for _ in 0..10 {
        let arrived = arrive()?;
        ensure!(arrived == Err(libc::ECONNREFUSED), "{arrived:?}");
    }
    // A pod that is enrolled while the map is full, and whose sidecar listens already.
    let second = fixture.lab.pod("second", 3)?;
    let _other = sidecar::start(&second, &[80])?;
    fixture.lab.enroll("second", &second, &[])?;
    let arrived = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.3", 80)))?;
    ensure!(arrived == Err(libc::ECONNREFUSED), "{arrived:?}");
    let row = fixture.agent.places.pod("test/app")?.context("the pod")?;
    ensure!(row["listener"] == false, "{row}");
    ensure!(row["connections"]["refused"].as_u64() >= Some(10), "{row}");
    for number in 0..filled {
        maps.listeners.remove(&key(number))?;
    }
    // It is found without its doing anything.
    eventually(Duration::from_secs(20), || {
        ensure!(
            arrive()?.is_ok_and(|arrived| arrived.accepted_by == 15006),
            "still not known"
        );
        Ok(())
    })
}

/// Fills the map of counters, as many pods together can.
pub fn fill_counters(places: &Places) -> Result<()> {
    let pins = Pins::new(&places.bpffs)?;
    let map = sys::open_pin(&pins.map(names::COUNT_BY_RULE))?;
    let cpus = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = cpus.trim().rsplit(['-', ',']).next().unwrap_or("0");
    let zeroes = vec![0; 8 * (last.parse::<usize>()? + 1)];
    let key = |number: u64| CountKey {
        netns: UNUSED_COOKIE + number,
        ..bytemuck::Zeroable::zeroed()
    };
    fill(|number| {
        let key = key(number);
        let bytes = bytemuck::bytes_of(&key);
        sys::map_update(std::os::fd::AsFd::as_fd(&map), bytes, &zeroes, 0)
    })
    .map(drop)
}

kernel_test!(no_room_for_counters);
fn no_room_for_counters() -> Result<()> {
    let fixture = PodFixture::new()?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    fixture.enroll(&[])?;
    fill_counters(&fixture.agent.places)?;
    wait_problem(
        &fixture.agent.places,
        "map COUNT_BY_RULE has 65536 of 65536 rows",
    )?;
    // Evaluated in both directions and by more than one rule, and counted by rule.
    ensure!(accepted_by(&fixture.client)? == Ok(15001), "outbound");
    let proxy = fixture.client.dial(Dial::new(&PROXY, at(VIP, 80)))?;
    ensure!(
        proxy.as_ref().is_ok_and(|it| it.accepted_by == 80),
        "{proxy:?}"
    );
    let arrived = fixture
        .outside
        .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
    ensure!(
        arrived.as_ref().is_ok_and(|it| it.accepted_by == 15006),
        "{arrived:?}"
    );
    let row: Value = fixture
        .agent
        .places
        .pod("test/app")?
        .ok_or_else(|| anyhow!("no pod"))?;
    let connections = &row["connections"];
    ensure!(
        connections["outbound_redirected"] == 1
            && connections["inbound_redirected"] == 1
            && connections["untouched"].as_u64() >= Some(1),
        "{row}"
    );
    Ok(())
}
