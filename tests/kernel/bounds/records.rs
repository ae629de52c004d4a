//! Records of sockets are kernel memory that the agent pays for.

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    agent::WAIT_TIMEOUT,
    command::Process,
    protocol::{APP, PROXY, Request},
    sidecar,
    wait::eventually,
};
use sidetrack_common::names::{POOL_IN_USE, RECORD_QUOTA};

use crate::fixture::{PodFixture, VIP, at};

/// Connections without a dedicated target: those of a pod whose rules capture loopback addresses as well.
const WITHOUT_TARGETS: (&str, &str) = (
    "traffic.sidecar.istio.io/includeOutboundIPRanges",
    "127.0.0.0/8,10.0.0.0/8",
);

kernel_test!(sockets_of_a_pod_have_a_quota);
/// The sidecar is down, and the application keeps the sockets whose connections have failed. Those beyond the quota are
/// refused, and the quota is free again when they are closed.
fn sockets_of_a_pod_have_a_quota() -> Result<()> {
    let mut fixture = PodFixture::new()?;
    let mut other = fixture.lab.pod("other", 3)?;
    other = other.under_kubelet(&fixture.lab, &fixture.lab.uid(3))?;
    let others_app = other.actor()?;
    let _others_sidecar = sidecar::start(&other, &[])?;
    fixture.lab.enroll("other", &other, &[WITHOUT_TARGETS])?;
    fixture.enroll(&[WITHOUT_TARGETS])?;
    let cookie = fixture.agent.places.pod("test/app")?.context("the pod")?["netns"]["cookie"]
        .as_u64()
        .context("its cookie")?;
    let counted = |key: u64| -> Result<i64> {
        let count = fixture.agent.places.maps()?.records_by_pod.get(&key)?;
        Ok(count.unwrap_or_default().cast_signed())
    };
    fixture.client.flood(at(VIP[0], 80), 17_500)?;
    let (own, pool) = (counted(cookie)?, counted(POOL_IN_USE)?);
    // Connections that were made at the same time may be a few more.
    ensure!(own <= RECORD_QUOTA + 64, "{own} records");
    ensure!(own >= RECORD_QUOTA && pool == own, "{own}, {pool}");
    let why = fixture.agent.places.output(&["why", "test/app"])?;
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    ensure!(why.contains("records-full"), "{why}");
    // Connections that need none, and those of other pods, are as ever.
    let direct = fixture.client.connect(&PROXY, at(VIP[0], 80))?;
    ensure!(direct.accepted_by == 80, "{direct:?}");
    let others = others_app.connect(&APP, at(VIP[0], 80))?;
    ensure!(others.accepted_by == 15001, "{others:?}");
    let again = fixture.pod.actor()?;
    drop(std::mem::replace(&mut fixture.client, again));
    fixture.wait("no socket counts any more", || {
        let counted = |key| -> Result<i64> {
            let count = fixture.agent.places.maps()?.records_by_pod.get(&key)?;
            Ok(count.unwrap_or_default().cast_signed())
        };
        Ok(counted(cookie)? == 0 && counted(POOL_IN_USE)? == 0)
    })?;
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    let made = fixture.client.connect(&APP, at(VIP[0], 80))?;
    ensure!(made.accepted_by == 15001, "{made:?}");
    Ok(())
}

kernel_test!(connections_that_are_never_accepted_do_not_count_for_good);
/// The listener is closed while a connection waits in its queue, whose socket no process ever closes.
fn connections_that_are_never_accepted_do_not_count_for_good() -> Result<()> {
    /// Two looks at all records.
    const TIMEOUT: Duration = Duration::from_secs(30);
    let fixture = PodFixture::new()?;
    let sidecar = fixture.pod.actor()?;
    sidecar.ask(&Request::Hang(at("0.0.0.0", 15001)))?;
    fixture.enroll(&[WITHOUT_TARGETS])?;
    let places = &fixture.agent.places;
    let cookie = places.cookie("test/app")?;
    let counted = || -> Result<[i64; 2]> {
        let counts = places.maps()?.records_by_pod;
        let count = |key: u64| anyhow::Ok(counts.get(&key)?.unwrap_or_default().cast_signed());
        Ok([count(cookie)?, count(POOL_IN_USE)?])
    };
    fixture.client.flood(at(VIP[0], 80), 1)?;
    eventually(WAIT_TIMEOUT, || {
        let counts = counted()?;
        ensure!(counts == [2, 2], "{counts:?}");
        Ok(())
    })?;
    drop(sidecar);
    drop(fixture.client);
    eventually(TIMEOUT, || {
        let counts = counted()?;
        ensure!(counts == [0, 0], "{counts:?}");
        Ok(())
    })
}

const CLOSED_AND_KEPT: &str = "
import socket, sys, time
listener = socket.socket()
listener.bind(('127.0.0.1', 7000))
listener.listen(1000)
for number in range(int(sys.argv[1])):
    client = socket.socket()
    client.bind(('127.0.0.2', 0))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 120)
    client.connect(('127.0.0.1', 7000))
    client.close()
print('closed', flush=True)
time.sleep(100)
";

kernel_test!(closed_sockets_that_the_kernel_keeps_count);
/// Their peers do not close: the kernel keeps them, and their records, for a minute.
fn closed_sockets_that_the_kernel_keeps_count() -> Result<()> {
    const CLOSED: i64 = 600;
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let places = &fixture.agent.places;
    let cookie = places.cookie("test/app")?;
    let words = ["-c", CLOSED_AND_KEPT, &CLOSED.to_string()];
    let mut command = fixture
        .pod
        .command(APP.uid, Path::new("/usr/bin/python3"), &words);
    let mut process = Process::start(command.stdout(Stdio::piped()))?;
    let mut line = String::new();
    let output = process.stdout.take().context("its output")?;
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "closed\n", "{line}");
    eventually(Duration::from_secs(30), || {
        let counts = places.maps()?.records_by_pod;
        let own = counts.get(&cookie)?.unwrap_or_default().cast_signed();
        ensure!(own >= CLOSED, "{own}");
        Ok(())
    })
}
