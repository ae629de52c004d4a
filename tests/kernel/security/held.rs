//! Ways past the sidecar that an application may try, all of which it holds against: the application never
//! reaches the outside itself.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use lab::{
    actor::Actor,
    command::run,
    ledger::cgroup_root,
    protocol::{APP, Connected, Dial, Manner, Names, PROXY, ROOT, Request, Response},
    sidecar,
    tricks::{Privilege, Ring, Trick},
};

use crate::fixture::{Arrives, POD, PodFixture, SharedFixture, VIP, at, check};

/// A pod of its own whose sidecar listens, not enrolled yet; there is a server outside for both families.
pub fn pod() -> Result<(PodFixture, Actor)> {
    let fixture = PodFixture::new()?;
    fixture.lab.add_outside(VIP[1])?;
    fixture.outside.listen(&ROOT, at("::", 80))?;
    let sidecar = sidecar::start(&fixture.pod, &[])?;
    Ok((fixture, sidecar))
}

/// A plain connection of the application is redirected, and both ends have the right names.
pub fn as_usual(client: &Actor) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let result = client.dial(Dial::new(&APP, to))?;
        check(&result, Arrives::Sidecar(15001), POD[family], to).context("afterwards")?;
    }
    Ok(())
}

/// Makes a test that cannot be run on this machine end well, and says so. Another error is one of the test.
fn skipped(test: &str, errno: i32) -> Result<()> {
    let reason = std::io::Error::from_raw_os_error(errno);
    let is_lacking = matches!(errno, libc::ENOSYS | libc::EPERM | libc::EINVAL);
    ensure!(is_lacking, "{test} cannot be tried: {reason}");
    eprintln!("security::{test}: skipped, this kernel does not allow it: {reason}");
    Ok(())
}

fn ends(client: &Actor, trick: Trick) -> Result<[Names; 2]> {
    match client.ask(&Request::Trick(trick))? {
        Response::Ends(ends) => Ok(*ends),
        other => bail!("unexpected answer {other:?}"),
    }
}

shared_test!(deferred_fast_open);
/// The application's write sends the SYN, long after connect was evaluated.
fn deferred_fast_open(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.manner = Manner::FastOpenDeferred;
        let result = fixture.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    Ok(())
}

/// Connects by io_uring, unless the kernel does not allow that.
fn by_ring(fixture: &SharedFixture, test: &str, direct: bool) -> Result<()> {
    for polled in [false, true] {
        let ring = Ring { polled, direct };
        if let Response::Unavailable(errno) =
            fixture.client.ask(&Request::Trick(Trick::Ring(ring)))?
        {
            skipped(test, errno)?;
            continue;
        }
        for family in [0, 1] {
            let to = at(VIP[family], 80);
            let mut dial = Dial::new(&APP, to);
            dial.manner = Manner::Ring(ring);
            let result = fixture.dial(dial)?;
            check(&result, Arrives::Sidecar(15001), POD[family], to)
                .with_context(|| format!("{ring:?}"))?;
        }
    }
    as_usual(&fixture.client)
}

shared_test!(io_uring);
/// IORING_OP_CONNECT, by the thread that submits it and by a thread of the kernel.
fn io_uring(fixture: &SharedFixture) -> Result<()> {
    by_ring(fixture, "io_uring", false)
}

shared_test!(io_uring_without_a_descriptor);
/// The socket has an owner although the process has no descriptor of it.
fn io_uring_without_a_descriptor(fixture: &SharedFixture) -> Result<()> {
    by_ring(fixture, "io_uring_without_a_descriptor", true)
}

/// Has one process create a socket and another, with another identity, connect it.
fn lent(
    fixture: &PodFixture,
    lender: &Actor,
    borrower: &Actor,
    family: usize,
) -> Result<Result<Connected, i32>> {
    let mut dial = Box::new(Dial::new(&APP, at(VIP[family], 80)));
    dial.connector = Some(PROXY);
    let at = fixture.lab.dir().join("lent");
    lender.ask(&Request::Trick(Trick::Lend {
        at: at.clone(),
        dial: dial.clone(),
    }))?;
    match borrower.ask(&Request::Trick(Trick::Borrow { at, dial }))? {
        Response::Dialed(result) => Ok(result.map(|connected| *connected)),
        other => bail!("unexpected answer {other:?}"),
    }
}

kernel_test!(sockets_passed_to_others);
/// A socket belongs to the namespace, the cgroup and the user it was created in.
///
/// Not promised: a socket that a process of the pod's network namespace creates while it is outside of the
/// cgroup with the hooks. It has no hooks, whichever process connects it. Only root on the node can make such a process,
/// and the agent shows its pod as `partial`.
fn sockets_passed_to_others() -> Result<()> {
    let (fixture, _sidecar) = pod()?;
    fixture.enroll(&[])?;
    let node = cgroup_root()?;
    let stranger = Actor::start(&fixture.lab.outside().netns, &node)?;
    // In the pod's network, and in a cgroup that has the hooks but is not the pod's.
    let visitor = Actor::start(&fixture.pod.netns, &fixture.agent.places.cgroup)?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        for (lender, borrower, whose) in [
            (&fixture.client, &stranger, "the pod's"),
            (&visitor, &fixture.client, "a visitor's"),
        ] {
            let mut result = lent(&fixture, lender, borrower, family)?;
            // What needs the callbacks is refused until the agent has noticed the visitor.
            let deadline = Instant::now() + Duration::from_secs(20);
            while family == 1 && result == Err(libc::ECONNREFUSED) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(100));
                result = lent(&fixture, lender, borrower, family)?;
            }
            check(&result, Arrives::Sidecar(15001), POD[family], to)
                .with_context(|| format!("{whose} socket"))?;
        }
        // It is not the process that connects that counts: the stranger reaches the service by itself.
        let own = stranger.dial(Dial::new(&APP, to))?;
        ensure!(
            own.as_ref().is_ok_and(|own| own.accepted_by == 80),
            "{own:?}"
        );
    }
    as_usual(&fixture.client)
}

shared_test!(tcp_repair);
/// A socket in repair mode would be established without a SYN, and so past the sidecar. That takes CAP_NET_ADMIN
/// in the user namespace that owns the pod's network. A pod with that capability is not held: it may send
/// packets of its own making anyway.
fn tcp_repair(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let mut dial = Dial::new(&APP, at(VIP[family], 80));
        dial.manner = Manner::With(Privilege::Repair);
        let result = fixture.dial(dial)?;
        ensure!(result == Err(libc::EPERM), "{result:?}");
    }
    as_usual(&fixture.client)
}

kernel_test!(connections_without_a_listener);
/// Two sockets of the pod connect to each other at once: untouched, as with iptables.
fn connections_without_a_listener() -> Result<()> {
    let (fixture, _sidecar) = pod()?;
    fixture.enroll(&[])?;
    for (family, command) in ["iptables", "ip6tables"].into_iter().enumerate() {
        let [first, second] = [at(POD[family], 24_001), at(POD[family], 24_002)];
        // Over lo the first SYN arrives before the second socket connects, and would be answered with RST.
        let netns = &fixture.pod.netns;
        run(&format!(
            "ip netns exec {netns} {command} -A INPUT -p tcp --syn --dport {} -j DROP",
            second.port()
        ))?;
        let ends = ends(&fixture.client, Trick::Simultaneous([first, second]))?;
        for (end, (own, other)) in ends.iter().zip([(first, second), (second, first)]) {
            ensure!(end.local == own && end.peer == other, "{ends:?}");
        }
        // The next connections of these ports have names of their own.
        for from in [first, second] {
            let to = at(VIP[family], 80);
            let mut dial = Dial::new(&APP, to);
            dial.source = Some(from);
            let result = fixture.client.dial(dial)?;
            check(&result, Arrives::Sidecar(15001), POD[family], to)?;
        }
    }
    no_handshakes(&fixture)
}

fn no_handshakes(fixture: &PodFixture) -> Result<()> {
    let rows = fixture.agent.places.map("HANDSHAKES")?;
    ensure!(rows.is_empty(), "{rows:?}");
    Ok(())
}

kernel_test!(self_connections);
/// The kernel informs the hooks that such a socket has accepted a connection, which it also began.
fn self_connections() -> Result<()> {
    let fixture = PodFixture::new()?;
    fixture.enroll(&[])?;
    for (family, loopback) in ["127.0.0.1", "::1"].into_iter().enumerate() {
        for own in [POD[family], loopback] {
            let from = at(own, 24_003);
            let [end, _] = ends(&fixture.client, Trick::SelfConnect { from, to: from })?;
            ensure!(end.local == from && end.peer == from, "{end:?}");
        }
    }
    let _sidecar = sidecar::start(&fixture.pod, &[])?;
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let mut dial = Dial::new(&APP, to);
        dial.source = Some(at(POD[family], 24_003));
        let result = fixture.client.dial(dial)?;
        check(&result, Arrives::Sidecar(15001), POD[family], to)?;
    }
    no_handshakes(&fixture)
}

shared_test!(nested_namespaces);
/// An application may always make namespaces, in which it is root. They have no way out.
fn nested_namespaces(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 80);
        let answer = fixture.client.ask(&Request::Trick(Trick::Nested(to)))?;
        let attempts = match answer {
            Response::AllDialed(attempts) => attempts,
            Response::Unavailable(errno) => return skipped("nested_namespaces", errno),
            other => bail!("unexpected answer {other:?}"),
        };
        let [inside, repair, before] = attempts.try_into().map_err(|all| anyhow!("{all:?}"))?;
        // IPv6 looks for a source address first.
        let no_way = [libc::ENETUNREACH, libc::EADDRNOTAVAIL][family];
        ensure!(inside == Err(no_way), "inside: {inside:?}");
        ensure!(repair == Err(libc::EPERM), "TCP_REPAIR: {repair:?}");
        check(&before, Arrives::Sidecar(15001), POD[family], to).context("a socket from before")?;
    }
    as_usual(&fixture.client)
}
