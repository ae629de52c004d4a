//! The outbound table of docs/semantics.md, each row over real sockets in both families.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lab::protocol::{APP, Dial, Identity, PROXY, ROOT};

use crate::{
    SharedTest,
    fixture::{Arrives, POD, SECOND, VIP, World, at, check},
};

pub fn tests() -> Vec<(&'static str, SharedTest)> {
    vec![
        ("outbound::app_to_off_pod", app_to_off_pod),
        ("outbound::app_to_loopback", app_to_loopback),
        ("outbound::app_to_own_addresses", app_to_own_addresses),
        (
            "outbound::app_to_the_capture_port_of_another",
            capture_port_elsewhere,
        ),
        ("outbound::app_bound_to_loopback", app_bound_to_loopback),
        ("outbound::app_bound_to_an_own_address", app_bound_to_own),
        ("outbound::v4_mapped", v4_mapped),
        ("outbound::proxy_off_pod_and_loopback", proxy_off_pod),
        ("outbound::proxy_to_own_addresses", proxy_to_own),
        ("outbound::proxy_to_the_tunnel_port", proxy_to_tunnel),
        ("outbound::proxy_from_its_self_address", proxy_from_self),
        ("outbound::what_istio_validation_does", validation),
        ("outbound::unspecified_destinations", unspecified),
        ("outbound::routes_that_refuse", routes_that_refuse),
        ("outbound::bound_to_a_device", bound_device),
        ("outbound::udp_is_untouched", udp),
    ]
}

/// One row: who, from where, to where, with what outcome.
fn row(
    world: &World,
    creator: &Identity,
    source: Option<&str>,
    destination: SocketAddr,
    arrives: Arrives,
    seen_as: &str,
) -> Result<()> {
    let mut dial = Dial::new(creator, destination);
    dial.source = source.map(|source| at(source, 0));
    let result = world.dial(dial)?;
    check(&result, arrives, seen_as, destination)
        .with_context(|| format!("uid {} from {source:?} to {destination}", creator.uid))
}

fn app_to_off_pod(world: &World) -> Result<()> {
    for creator in [&APP, &ROOT] {
        for family in [0, 1] {
            for port in [80, 443, 15006, 15008, 15020] {
                let to = at(VIP[family], port);
                row(
                    world,
                    creator,
                    None,
                    to,
                    Arrives::Sidecar(15001),
                    POD[family],
                )?;
            }
        }
    }
    // A neighbor on the pod's own subnet.
    let to = at("10.77.0.254", 80);
    row(world, &APP, None, to, Arrives::Sidecar(15001), POD[0])
}

fn app_to_loopback(world: &World) -> Result<()> {
    for to in ["127.0.0.1", "127.0.0.2", "127.0.0.6"] {
        row(
            world,
            &APP,
            None,
            at(to, 80),
            Arrives::Untouched,
            "127.0.0.1",
        )?;
    }
    for to in ["::1", "::6"] {
        row(world, &APP, None, at(to, 80), Arrives::Untouched, to)?;
    }
    Ok(())
}

fn app_to_own_addresses(world: &World) -> Result<()> {
    for own in [POD, SECOND].concat() {
        for port in [80, 15021] {
            row(world, &APP, None, at(own, port), Arrives::Untouched, own)?;
        }
    }
    Ok(())
}

fn capture_port_elsewhere(world: &World) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 15001);
        row(world, &APP, None, to, Arrives::Sidecar(15001), POD[family])?;
    }
    Ok(())
}

fn app_bound_to_loopback(world: &World) -> Result<()> {
    for source in ["127.0.0.1", "127.0.0.6"] {
        row(
            world,
            &APP,
            Some(source),
            at(POD[0], 80),
            Arrives::Untouched,
            source,
        )?;
        let off_pod = at(VIP[0], 80);
        row(
            world,
            &APP,
            Some(source),
            off_pod,
            Arrives::Fails(libc::EINVAL),
            "",
        )?;
    }
    // IPv6 differs: the kernel lets the source through, and the rules redirect.
    for source in ["::1", "::6"] {
        row(
            world,
            &APP,
            Some(source),
            at(POD[1], 80),
            Arrives::Untouched,
            source,
        )?;
        row(
            world,
            &APP,
            Some(source),
            at(VIP[1], 80),
            Arrives::Sidecar(15001),
            source,
        )?;
    }
    Ok(())
}

fn app_bound_to_own(world: &World) -> Result<()> {
    for family in [0, 1] {
        for source in [POD[family], SECOND[family]] {
            let to = at(VIP[family], 80);
            row(
                world,
                &APP,
                Some(source),
                to,
                Arrives::Sidecar(15001),
                source,
            )?;
        }
    }
    Ok(())
}

fn v4_mapped(world: &World) -> Result<()> {
    for (creator, destination, arrives, seen_as) in [
        (&APP, at(VIP[0], 80), Arrives::Sidecar(15001), POD[0]),
        (&APP, at(POD[0], 80), Arrives::Untouched, POD[0]),
        (&PROXY, at(POD[0], 80), Arrives::Sidecar(15006), POD[0]),
        (&PROXY, at(VIP[0], 80), Arrives::Untouched, POD[0]),
    ] {
        let mut dial = Dial::new(creator, destination);
        dial.mapped = true;
        let result = world.dial(dial)?;
        check_client_or_all(&result, arrives, seen_as, destination)
            .with_context(|| format!("uid {} to {destination}", creator.uid))?;
    }
    Ok(())
}

/// Outside the pod nobody answers SO_ORIGINAL_DST, so of untouched off-pod connections only the
/// arrival is checked.
fn check_client_or_all(
    result: &Result<lab::protocol::Connected, i32>,
    arrives: Arrives,
    seen_as: &str,
    destination: SocketAddr,
) -> Result<()> {
    if destination == at(VIP[0], 80) && matches!(arrives, Arrives::Untouched) {
        let connected = result
            .as_ref()
            .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
        ensure!(connected.server.local == destination, "{connected:?}");
        ensure!(
            connected.server.peer.ip() == crate::fixture::ip(seen_as),
            "{connected:?}"
        );
        return Ok(());
    }
    check(result, arrives, seen_as, destination)
}

fn proxy_off_pod(world: &World) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 8080);
        let connected = world.dial(Dial::new(&PROXY, to))?;
        let connected = connected.map_err(|errno| anyhow::anyhow!("to {to}: errno {errno}"))?;
        ensure!(
            connected.server.local == to && connected.client.peer == to,
            "{connected:?}"
        );
        ensure!(
            connected.server.peer.ip() == crate::fixture::ip(POD[family]),
            "{connected:?}"
        );
        // Connection tracking would know the client's end by the address it dialed.
        ensure!(
            crate::fixture::original(&connected.client, to) == Ok(to),
            "{connected:?}"
        );
    }
    row(
        world,
        &PROXY,
        None,
        at("127.0.0.1", 80),
        Arrives::Untouched,
        "127.0.0.1",
    )?;
    row(
        world,
        &PROXY,
        None,
        at("::1", 80),
        Arrives::Untouched,
        "::1",
    )?;
    // The kernel picks ::6 itself as the source, which the rules leave alone.
    row(
        world,
        &PROXY,
        None,
        at("::6", 80),
        Arrives::Untouched,
        "::6",
    )
}

fn proxy_to_own(world: &World) -> Result<()> {
    for own in [POD, SECOND].concat() {
        for port in [80, 81, 15021, 15006] {
            row(
                world,
                &PROXY,
                None,
                at(own, port),
                Arrives::Sidecar(15006),
                own,
            )?;
        }
    }
    row(
        world,
        &PROXY,
        None,
        at("127.0.0.2", 80),
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )?;
    row(
        world,
        &PROXY,
        None,
        at("127.0.0.6", 80),
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )
}

fn proxy_to_tunnel(world: &World) -> Result<()> {
    for family in [0, 1] {
        let to = at(POD[family], 15008);
        row(world, &PROXY, None, to, Arrives::Untouched, POD[family])?;
    }
    Ok(())
}

fn proxy_from_self(world: &World) -> Result<()> {
    for (source, to) in [("127.0.0.6", POD[0]), ("::6", POD[1])] {
        row(
            world,
            &PROXY,
            Some(source),
            at(to, 80),
            Arrives::Untouched,
            source,
        )?;
    }
    Ok(())
}

fn validation(world: &World) -> Result<()> {
    let to = at("127.0.0.6", 15002);
    row(
        world,
        &PROXY,
        Some("127.0.0.1"),
        to,
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )?;
    let to = at("::6", 15002);
    row(
        world,
        &PROXY,
        Some("::1"),
        to,
        Arrives::Sidecar(15006),
        "::1",
    )
}

fn unspecified(world: &World) -> Result<()> {
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
        let result = world.dial(dial)?;
        check(&result, arrives, seen_as, at(meant, 80))
            .with_context(|| format!("uid {} from {source:?} to {to}", creator.uid))?;
    }
    Ok(())
}

fn routes_that_refuse(world: &World) -> Result<()> {
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
            row(world, creator, None, at(to, 80), Arrives::Fails(errno), "")?;
        }
    }
    Ok(())
}

fn bound_device(world: &World) -> Result<()> {
    // Under iptables this times out; sidetrack leaves it untouched and counts it.
    let mut dial = Dial::new(&APP, at(VIP[0], 80));
    dial.device = Some("eth0".to_owned());
    let connected = world
        .dial(dial)?
        .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
    ensure!(connected.server.local == at(VIP[0], 80), "{connected:?}");
    Ok(())
}

fn udp(world: &World) -> Result<()> {
    // dig, nslookup and friends would need a server; a connected socket's peer says enough.
    let text = lab::command::run_words(&[
        "sh",
        "-c",
        &format!(
            "echo $$ > {}/cgroup.procs; ip netns exec {} python3 -c \"import socket; \
             s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('{}', 53)); \
             print(s.getpeername())\"",
            world.pod.cgroup.display(),
            world.pod.netns,
            VIP[0]
        ),
    ])?;
    ensure!(text.trim() == format!("('{}', 53)", VIP[0]), "{text}");
    Ok(())
}
