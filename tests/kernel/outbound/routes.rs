//! Unusual destinations, routes and devices; UDP.

use anyhow::{Context as _, Result, ensure};
use lab::protocol::{APP, Dial, PROXY};

use super::row;
use crate::fixture::{Arrives, POD, SharedFixture, VIP, at, check};

shared_test!(unspecified_destinations);
fn unspecified_destinations(fixture: &SharedFixture) -> Result<()> {
    for (creator, source, to, meant, arrives, seen_as) in [
        (
            &APP,
            None,
            "0.0.0.0",
            "127.0.0.1",
            Arrives::Untouched,
            "127.0.0.1",
        ),
        (&APP, None, "::", "::1", Arrives::Untouched, "::1"),
        (
            &PROXY,
            Some(POD[0]),
            "0.0.0.0",
            POD[0],
            Arrives::Sidecar(15006),
            POD[0],
        ),
        (&PROXY, None, "::", "::1", Arrives::Untouched, "::1"),
    ] {
        let mut dial = Dial::new(creator, at(to, 80));
        dial.source = source.map(|source| at(source, 0));
        let result = fixture.dial(dial)?;
        check(&result, arrives, seen_as, at(meant, 80))
            .with_context(|| format!("uid {} from {source:?} to {to}", creator.uid))?;
    }
    Ok(())
}

shared_test!(routes_that_refuse);
fn routes_that_refuse(fixture: &SharedFixture) -> Result<()> {
    for (to, errno) in [
        ("10.201.0.1", libc::EINVAL),
        ("10.202.0.1", libc::EHOSTUNREACH),
        ("10.203.0.1", libc::EACCES),
        ("fdb1::1", libc::EINVAL),
        ("fdb2::1", libc::EHOSTUNREACH),
        ("fdb3::1", libc::EACCES),
        ("224.0.0.1", libc::ENETUNREACH),
        ("255.255.255.255", libc::ENETUNREACH),
        ("10.77.255.255", libc::ENETUNREACH),
        ("ff02::1", libc::ENETUNREACH),
    ] {
        // The proxy is not captured, so what it gets is the kernel's own word.
        for creator in [&PROXY, &APP] {
            row(
                fixture,
                creator,
                None,
                at(to, 80),
                Arrives::Fails(errno),
                "",
            )?;
        }
    }
    Ok(())
}

shared_test!(bound_to_a_device);
fn bound_to_a_device(fixture: &SharedFixture) -> Result<()> {
    // Under iptables this times out; sidetrack leaves it untouched and counts it.
    let mut dial = Dial::new(&APP, at(VIP[0], 80));
    dial.device = Some("eth0".to_owned());
    let connected = fixture
        .dial(dial)?
        .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    ensure!(connected.server.local == at(VIP[0], 80), "{connected:?}");
    Ok(())
}

shared_test!(udp_is_untouched);
fn udp_is_untouched(fixture: &SharedFixture) -> Result<()> {
    // dig, nslookup and friends would need a server; a connected socket's peer says enough.
    let text = lab::command::run_words(&[
        "sh",
        "-c",
        &format!(
            "echo $$ > {}/cgroup.procs; ip netns exec {} python3 -c \"import socket; \
             s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('{}', 53)); \
             print(s.getpeername())\"",
            fixture.pod.cgroup.display(),
            fixture.pod.netns,
            VIP[0]
        ),
    ])?;
    ensure!(text.trim() == format!("('{}', 53)", VIP[0]), "{text}");
    Ok(())
}
