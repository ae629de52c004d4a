//! SO_ORIGINAL_DST is answered at the level of the connection's family; at the other level the kernel's
//! own answer stays.

use std::{
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    ops::ControlFlow,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lab::{
    agent::{Agent, Extra},
    command::die_with_parent,
    network::{Lab, PodNet},
    product::{Netns, OpenSocket, Pins, Records},
    protocol::{APP, Connected, Dial, Names, PROXY, ROOT},
    sidecar,
};

use crate::fixture::{POD, PodFixture, VIP, at, original};

/// What the other family's level answers.
fn other_level(names: &Names, family: usize) -> Result<SocketAddr, i32> {
    [names.original_v6, names.original_v4][family]
}

/// A connection of a family, from inside the pod.
fn dial(fixture: &PodFixture, dial: Dial) -> Result<Connected> {
    let to = dial.destination;
    fixture
        .client
        .dial(dial)?
        .map_err(|errno| anyhow!("to {to}: errno {errno}"))
}

/// A destination, dialed on an IPv6 socket even if it is IPv4.
fn on_v6_socket(destination: SocketAddr) -> Dial {
    let mut dial = Dial::new(&APP, destination);
    dial.mapped = destination.is_ipv4();
    dial
}

kernel_test!(only_the_level_of_the_family_answers);
fn only_the_level_of_the_family_answers() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    for family in [0, 1] {
        let own = at(POD[family], 80);
        // The kernel's answers, from a pod that is not enrolled; of an accepted socket as well.
        let plain = dial(&fixture, Dial::new(&APP, own))?;
        let plain_v6 = dial(&fixture, on_v6_socket(own))?;
        let refusals = [
            other_level(&plain.client, family),
            other_level(&plain.server, family),
            other_level(&plain_v6.client, family),
        ];
        ensure!(
            refusals.iter().all(Result::is_err),
            "the kernel answers at the other level: {refusals:?}"
        );

        fixture.enroll(&[])?;
        for (case, port) in [
            (Dial::new(&APP, at(VIP[family], 80)), 15001),
            (Dial::new(&APP, own), 80),
            (Dial::new(&PROXY, own), 15006),
            (on_v6_socket(at(VIP[family], 80)), 15001),
            (on_v6_socket(own), 80),
        ] {
            let to = case.destination;
            let what = || format!("uid {} to {to}, mapped: {}", case.creator.uid, case.mapped);
            let client = refusals[if case.mapped { 2 } else { 0 }];
            let connected = dial(&fixture, case.clone()).with_context(what)?;
            ensure!(connected.accepted_by == port, "{}: {connected:?}", what());
            ensure!(
                original(&connected.client, to) == Ok(to)
                    && original(&connected.server, to) == Ok(to),
                "{}: {connected:?}",
                what()
            );
            ensure!(
                other_level(&connected.client, family) == client
                    && other_level(&connected.server, family) == refusals[1],
                "{}: the other level answers: {connected:?}, the kernel alone: {refusals:?}",
                what()
            );
        }
        // An accepted socket without a record answers its own address.
        let arrived = fixture.outside.connect(&ROOT, own)?;
        ensure!(
            arrived.accepted_by == 15006
                && original(&arrived.server, own) == Ok(own)
                && other_level(&arrived.server, family) == refusals[1],
            "{arrived:?}, the kernel alone: {refusals:?}"
        );
        fixture.lab.release("app")?;
    }
    Ok(())
}

/// The open sockets of a pod, with their records.
fn sockets(fixture: &PodFixture) -> Result<Vec<OpenSocket>> {
    const WAIT_TIMEOUT: Duration = Duration::from_secs(5);
    let records = Records::open(&Pins::new(&fixture.lab.places().bpffs)?)?;
    let netns = Netns::open(Path::new(&fixture.pod.path()))?;
    let mut sockets = Vec::new();
    let families = [libc::AF_INET, libc::AF_INET6].map(|family| family as u8);
    netns.run(|| {
        families.into_iter().try_for_each(|family| {
            records.visit(family, Instant::now() + WAIT_TIMEOUT, |socket| {
                sockets.push(socket);
                ControlFlow::Continue(())
            })
        })
    })??;
    Ok(sockets)
}

/// Whether the socket with an address has a record.
fn has_record(fixture: &PodFixture, local: SocketAddr) -> Result<bool> {
    let sockets = sockets(fixture)?;
    let found = sockets.iter().find(|socket| socket.local == local);
    let found = found.with_context(|| format!("no socket {local}: {sockets:?}"))?;
    Ok(found.record.is_some())
}

kernel_test!(connections_of_the_proxy_take_no_storage);
/// What it calls outside has an original destination at both ends of its own, and no record.
fn connections_of_the_proxy_take_no_storage() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    let _sidecar = sidecar::start(&fixture.pod, &[80])?;
    fixture.enroll(&[])?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let held = |dial: Dial| -> Result<SocketAddr> {
            let result = fixture.client.hold(dial)?;
            let connected = result.map_err(|errno| anyhow!("to {to}: errno {errno}"))?;
            ensure!(connected.accepted_by == 80, "{connected:?}");
            ensure!(connected.client.peer == to, "{connected:?}");
            ensure!(original(&connected.client, to) == Ok(to), "{connected:?}");
            Ok(connected.client.local)
        };
        ensure!(!has_record(&fixture, held(Dial::new(&PROXY, to))?)?);
        // The kernel does not distinguish those of a bound port from sockets that were accepted.
        let mut bound = Dial::new(&PROXY, to);
        bound.source = Some(SocketAddr::new(at(POD[family], 0).ip(), 5_000));
        ensure!(has_record(&fixture, held(bound)?)?);
    }
    Ok(())
}

kernel_test!(without_reads_of_kernel_memory_they_do);
/// As on a node in lockdown.
fn without_reads_of_kernel_memory_they_do() -> Result<()> {
    let mut lab = Lab::new()?;
    lab.add_outside(VIP[0])?;
    let pod = lab.pod("app", 2)?;
    let outside = lab.outside().actor()?;
    outside.listen(&ROOT, at("0.0.0.0", 80))?;
    let _agent = Agent::start_with(
        lab.places(),
        &Extra::variables(&[("SIDETRACK_WITHOUT", "read_kernel")]),
    )?;
    lab.enroll("app", &pod, &[])?;
    let to = at(VIP[0], 80);
    let connected = pod.actor()?.connect(&PROXY, to)?;
    ensure!(
        connected.accepted_by == 80 && original(&connected.client, to) == Ok(to),
        "{connected:?}"
    );
    Ok(())
}

/// Listens with the shortest queue there is, which sockets that it accepts have from it, and prints SO_ORIGINAL_DST.
const SHORTEST_QUEUE: &str = "
import socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(('0.0.0.0', 15006))
listener.listen(0)
print('listening', flush=True)
for _ in range(2):
    accepted, _ = listener.accept()
    answer = accepted.getsockopt(socket.SOL_IP, 80, 16)
    print(socket.inet_ntoa(answer[4:8]), int.from_bytes(answer[2:4], 'big'), flush=True)
    accepted.close()
";

kernel_test!(sidecars_with_the_shortest_queue_are_not_mistaken_for_clients);
fn sidecars_with_the_shortest_queue_are_not_mistaken_for_clients() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let mut sidecar = start(&fixture.pod, SHORTEST_QUEUE)?;
    let mut lines = BufReader::new(sidecar.stdout.take().context("its output")?).lines();
    let mut line = || lines.next().context("a line")?.context("read it");
    ensure!(line()? == "listening");
    for port in [80, 8080] {
        let _ = fixture.outside.dial(Dial::new(&ROOT, at(POD[0], port)))?;
        let said = line()?;
        ensure!(said == format!("{} {port}", POD[0]), "{said}");
    }
    sidecar.wait()?;
    Ok(())
}

/// SO_ORIGINAL_DST of both families, on a netlink socket whose protocol has the number of TCP (NETLINK_XFRM), and whose state
/// once it is connected is that of an established connection.
const NETLINK: &str = "
import socket
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
s.connect((0, 0))
for level in (socket.SOL_IP, socket.IPPROTO_IPV6):
    try:
        print(s.getsockopt(level, 80, 28).hex())
    except OSError as error:
        print(error.errno)
";

kernel_test!(sockets_of_other_families_are_the_kernels);
fn sockets_of_other_families_are_the_kernels() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    let answer = start(&fixture.pod, NETLINK)?.wait_with_output()?;
    let answer = String::from_utf8(answer.stdout)?;
    let none = libc::ENOPROTOOPT;
    ensure!(answer == format!("{none}\n{none}\n"), "{answer}");
    Ok(())
}

fn start(pod: &PodNet, script: &str) -> Result<std::process::Child> {
    let python = Path::new("/usr/bin/python3");
    let mut command = pod.command(PROXY.uid, python, &["-c", script]);
    command.stdout(Stdio::piped());
    let child = die_with_parent(&mut command).spawn();
    child.context("start /usr/bin/python3")
}
