//! Pods that have too much of something: descriptors, listeners, addresses, changes. Others do not notice.
//!
//! `SIDETRACK_TEST_SCALE=30` makes the numbers 30 times as large.

use std::{
    fmt::Write as _,
    fs,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    command::Process,
    network::Manifest,
    node::VIP,
    protocol::{Dial, ROOT},
    sidecar,
    wait::eventually,
};

use super::health::Health;
use crate::{
    facilities::refusal,
    fixture::{PodFixture, at},
    sockets::group,
};

/// Another pod is enrolled in less than this, whatever the hostile one does.
const SOON: Duration = Duration::from_secs(1);
/// The agent's resident memory stays below this, in KiB.
const MEMORY: u64 = 64 * 1024;

pub(super) fn scale() -> usize {
    let scale = std::env::var("SIDETRACK_TEST_SCALE");
    scale.map_or(1, |scale| scale.parse().expect("a number"))
}

/// A loop in a pod's namespace.
fn start_loop(fixture: &PodFixture, body: &str) -> Result<Process> {
    let script = format!("while :; do {body}; done");
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", fixture.pod.path()));
    command.args(["sh", "-c", &script]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(&mut command)
}

/// Enrolls one more pod; how long that took.
fn enroll_another(fixture: &mut PodFixture, name: &str, number: u8) -> Result<Duration> {
    let pod = fixture.lab.pod(name, number)?;
    let start = Instant::now();
    fixture.lab.write_pod(name, &pod, &[])?;
    fixture
        .agent
        .places
        .wait_enrolled(&format!("test/{name}"))?;
    Ok(start.elapsed())
}

kernel_test!(descriptors_without_number);
/// The texts of epoll descriptors in `/proc/PID/fdinfo` have a line for each watch. With more listeners than
/// slots the agent looks at the pod's descriptors at every search.
fn descriptors_without_number() -> Result<()> {
    const LISTENERS: usize = 33;
    const WATCHES: usize = 50_000;
    let processes = 2 * scale();
    let mut fixture = PodFixture::new()?;
    let health = Health::watch(&mut fixture)?;
    let sidecar = fixture.pod.actor()?;
    sidecar.listen_group(group(15006, LISTENERS))?;
    let mut crowd = Vec::new();
    for _ in 0..processes {
        crowd.push(fixture.pod.actor()?);
        crowd[crowd.len() - 1].crowd(WATCHES)?;
    }
    fixture.agent.reset_peak_memory()?;

    let start = Instant::now();
    fixture.enroll(&[])?;
    let enrolled = start.elapsed();
    let other = enroll_another(&mut fixture, "other", 3)?;
    eventually(Duration::from_secs(5), || {
        let inbound = fixture
            .outside
            .dial(Dial::new(&ROOT, at("10.77.0.2", 80)))?;
        ensure!(
            inbound.is_ok_and(|inbound| inbound.accepted_by == 15006),
            "the listeners are not found: {}",
            fixture.agent.places.log()
        );
        Ok(())
    })?;
    let peak = fixture.agent.peak_memory()?;
    let [median, longest] = health.end()?;
    println!(
        "{processes} processes with {WATCHES} watches: enrolled after {enrolled:?}, another pod after {other:?}, /healthz {median:?}, at most {longest:?}, memory at most {peak} KiB"
    );
    ensure!(enrolled < SOON && other < SOON);
    ensure!(peak < MEMORY, "{peak} KiB");
    let log = fixture.agent.places.log();
    ensure!(!log.contains("could not be adopted"), "{log}");
    Ok(())
}

kernel_test!(addresses_without_number);
fn addresses_without_number() -> Result<()> {
    /// What one pod may have, and the two rows for everything.
    const MAX_ROWS: usize = 2048 + 2;
    let addresses = 9_000 * scale();
    let mut fixture = PodFixture::new()?;
    let health = Health::watch(&mut fixture)?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    ensure!(fixture.accepted_by()? == 15001);
    fixture.agent.reset_peak_memory()?;

    let mut batch = String::new();
    for number in 0..addresses {
        let (high, middle, low) = (number >> 16 & 0xff, number >> 8 & 0xff, number & 0xff);
        writeln!(batch, "route add local 11.{high}.{middle}.{low}/32 dev lo")?;
    }
    let file = fixture.lab.dir().join("batch");
    fs::write(&file, batch)?;
    fixture.pod.ip(&format!("-batch {}", file.display()))?;

    // It is refused, by its own rules and with a reason, and not let past its sidecar.
    eventually(Duration::from_secs(5), || {
        ensure!(
            fixture.dial(at(VIP, 80))? == Err(libc::ECONNREFUSED),
            "it is not refused"
        );
        Ok(())
    })?;
    let pod = fixture.agent.places.pod("test/app")?.context("the pod")?;
    ensure!(
        pod.to_string().contains("more than 2048 addresses"),
        "{pod}"
    );
    let rows = fixture.agent.places.map("ROUTE_BY_POD")?.len();
    ensure!(rows <= MAX_ROWS, "{rows} rows");

    let other = enroll_another(&mut fixture, "other", 3)?;
    let flapping = start_loop(
        &fixture,
        "ip address add 10.99.0.1/32 dev eth0; ip address del 10.99.0.1/32 dev eth0",
    )?;
    thread::sleep(Duration::from_secs(2));
    let meanwhile = enroll_another(&mut fixture, "meanwhile", 4)?;
    drop(flapping);
    let peak = fixture.agent.peak_memory()?;
    let [median, longest] = health.end()?;
    println!(
        "{addresses} addresses: another pod after {other:?}, one while an address comes and goes after {meanwhile:?}, /healthz {median:?}, at most {longest:?}, memory at most {peak} KiB"
    );
    ensure!(other < SOON && meanwhile < SOON);
    ensure!(peak < MEMORY, "{peak} KiB");

    // When they are gone it is as before.
    fixture
        .pod
        .ip("route flush table local root 11.0.0.0/8")
        .map_err(|error| anyhow!("{error:#}"))?;
    fixture.wait_accepted_by(15001)?;
    Ok(())
}

kernel_test!(routes_of_a_whole_namespace);
/// Each of its pods may have 2,048, and they have a quota together. Later ones intercept as well, and say what they lack.
fn routes_of_a_whole_namespace() -> Result<()> {
    const PODS: u8 = 5;
    const EACH: usize = 2_000;
    /// What five pods are sure to have, and a fourth of the rest of the map.
    const QUOTA: usize = PODS as usize * 26 + (131_072 - 4_096 * 26) / 4;
    let mut fixture = PodFixture::new()?;
    let mut batch = String::new();
    for number in 0..EACH {
        let (high, low) = (number / 250, number % 250);
        writeln!(batch, "route add blackhole 11.{high}.{low}.0/24")?;
    }
    let file = fixture.lab.dir().join("batch");
    fs::write(&file, batch)?;
    let mut pods = Vec::new();
    for number in 1..=PODS {
        let name = format!("greedy-{number}");
        let pod = fixture.lab.pod(&name, 10 + number)?;
        pod.ip(&format!("-batch {}", file.display()))?;
        fixture.lab.enroll(&name, &pod, &[])?;
        pods.push((name, pod));
    }
    let places = &fixture.agent.places;
    let rows = places.map("ROUTE_BY_POD")?.len();
    ensure!(rows <= QUOTA, "{rows} rows, not {QUOTA}");
    for (number, (name, pod)) in pods.iter().enumerate() {
        let is_whole = number < 3;
        let shown = places.pod(&format!("test/{name}"))?.context("the pod")?;
        let says = shown
            .to_string()
            .contains("so every destination but its own");
        ensure!(says != is_whole, "{shown}");
        let names_quota = shown.to_string().contains("the quota of its namespace");
        ensure!(names_quota != is_whole, "{shown}");
        let _sidecar = sidecar::start(pod, &[80])?;
        let dialed = pod.actor()?.dial(Dial::new(&ROOT, at("11.1.1.1", 80)))?;
        let accepted = dialed.as_ref().map(|it| it.accepted_by);
        let refused = refusal(libc::EINVAL);
        let wanted = if is_whole { Err(&refused) } else { Ok(15001) };
        ensure!(accepted == wanted, "{name}: {dialed:?}");
    }
    // Another namespace has a quota of its own.
    let (name, pod) = ("other", fixture.lab.pod("other", 30)?);
    pod.ip(&format!("-batch {}", file.display()))?;
    let manifest = Manifest::new(name, &pod).namespace("other");
    fixture.lab.write_manifest(name, &manifest)?;
    places.wait_enrolled("other/other")?;
    let added = places.map("ROUTE_BY_POD")?.len() - rows;
    ensure!(added > EACH, "{added} rows");
    Ok(())
}
