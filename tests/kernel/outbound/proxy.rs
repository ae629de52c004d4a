//! Connections of the proxy.

use anyhow::{Result, ensure};
use lab::protocol::PROXY;

use super::row;
use crate::fixture::{Arrives, POD, SECOND, SharedFixture, VIP, at};

shared_test!(proxy_off_pod_and_loopback);
fn proxy_off_pod_and_loopback(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(VIP[family], 8080);
        let connected = fixture.connect(&PROXY, to)?;
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
        fixture,
        &PROXY,
        None,
        at("127.0.0.1", 80),
        Arrives::Untouched,
        "127.0.0.1",
    )?;
    row(
        fixture,
        &PROXY,
        None,
        at("::1", 80),
        Arrives::Untouched,
        "::1",
    )?;
    // The kernel picks ::6 itself as the source, which the rules leave alone.
    row(
        fixture,
        &PROXY,
        None,
        at("::6", 80),
        Arrives::Untouched,
        "::6",
    )
}

shared_test!(proxy_to_own_addresses);
fn proxy_to_own_addresses(fixture: &SharedFixture) -> Result<()> {
    for own in [POD, SECOND].concat() {
        for port in [80, 81, 15021, 15006] {
            row(
                fixture,
                &PROXY,
                None,
                at(own, port),
                Arrives::Sidecar(15006),
                own,
            )?;
        }
    }
    row(
        fixture,
        &PROXY,
        None,
        at("127.0.0.2", 80),
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )?;
    row(
        fixture,
        &PROXY,
        None,
        at("127.0.0.6", 80),
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )
}

shared_test!(proxy_to_the_tunnel_port);
fn proxy_to_the_tunnel_port(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(POD[family], 15008);
        row(fixture, &PROXY, None, to, Arrives::Untouched, POD[family])?;
    }
    Ok(())
}

shared_test!(proxy_from_its_self_address);
fn proxy_from_its_self_address(fixture: &SharedFixture) -> Result<()> {
    for (source, to) in [("127.0.0.6", POD[0]), ("::6", POD[1])] {
        row(
            fixture,
            &PROXY,
            Some(source),
            at(to, 80),
            Arrives::Untouched,
            source,
        )?;
    }
    Ok(())
}

shared_test!(what_istio_validation_does);
fn what_istio_validation_does(fixture: &SharedFixture) -> Result<()> {
    let to = at("127.0.0.6", 15002);
    row(
        fixture,
        &PROXY,
        Some("127.0.0.1"),
        to,
        Arrives::Sidecar(15006),
        "127.0.0.1",
    )?;
    let to = at("::6", 15002);
    row(
        fixture,
        &PROXY,
        Some("::1"),
        to,
        Arrives::Sidecar(15006),
        "::1",
    )
}
