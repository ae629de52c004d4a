//! Connections of the proxy.

use anyhow::Result;
use lab::protocol::PROXY;

use crate::fixture::{
    Arrives::{Sidecar, Untouched},
    POD, SECOND, SharedFixture, VIP, at,
};

shared_test!(proxy_off_pod_and_loopback);
fn proxy_off_pod_and_loopback(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        fixture.leaves(&PROXY, at(VIP[family], 8080), POD[family])?;
    }
    fixture.row(&PROXY, at("127.0.0.1", 80), Untouched, "127.0.0.1")?;
    fixture.row(&PROXY, at("::1", 80), Untouched, "::1")?;
    // The kernel picks ::6 itself as the source, which the rules leave alone.
    fixture.row(&PROXY, at("::6", 80), Untouched, "::6")
}

shared_test!(proxy_to_own_addresses);
fn proxy_to_own_addresses(fixture: &SharedFixture) -> Result<()> {
    for own in [POD, SECOND].concat() {
        for port in [80, 81, 15021, 15006] {
            fixture.row(&PROXY, at(own, port), Sidecar(15006), own)?;
        }
    }
    fixture.row(&PROXY, at("127.0.0.2", 80), Sidecar(15006), "127.0.0.1")?;
    fixture.row(&PROXY, at("127.0.0.6", 80), Sidecar(15006), "127.0.0.1")
}

shared_test!(proxy_to_the_tunnel_port);
fn proxy_to_the_tunnel_port(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        let to = at(POD[family], 15008);
        fixture.row(&PROXY, to, Untouched, POD[family])?;
    }
    Ok(())
}

shared_test!(proxy_from_its_self_address);
fn proxy_from_its_self_address(fixture: &SharedFixture) -> Result<()> {
    for (source, to) in [("127.0.0.6", POD[0]), ("::6", POD[1])] {
        fixture.row_from(&PROXY, source, at(to, 80), Untouched, source)?;
    }
    Ok(())
}

shared_test!(what_istio_validation_does);
fn what_istio_validation_does(fixture: &SharedFixture) -> Result<()> {
    let to = at("127.0.0.6", 15002);
    fixture.row_from(&PROXY, "127.0.0.1", to, Sidecar(15006), "127.0.0.1")?;
    let to = at("::6", 15002);
    fixture.row_from(&PROXY, "::1", to, Sidecar(15006), "::1")
}
