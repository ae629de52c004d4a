//! The inbound table of docs/semantics.md, each row over real sockets in both families.

use anyhow::{Context as _, Result, ensure};
use lab::protocol::{APP, Dial, PROXY, ROOT};

use crate::fixture::{POD, SECOND, SharedFixture, at, original};

shared_test!(captured_ports);
fn captured_ports(fixture: &SharedFixture) -> Result<()> {
    for address in [POD, SECOND].concat() {
        // Open, closed, and the capture ports themselves.
        for port in [22, 80, 8080, 9999, 15001, 15006] {
            let to = at(address, port);
            let connected = fixture
                .outside
                .dial(Dial::new(&ROOT, to))?
                .map_err(|errno| anyhow::anyhow!("to {to}: errno {errno}"))?;
            let server = &connected.server;
            ensure!(connected.accepted_by == 15006, "to {to}: {connected:?}");
            ensure!(
                server.peer == connected.client.local,
                "the peer is kept: {connected:?}"
            );
            ensure!(
                original(server, to) == Ok(to),
                "original destination: {server:?}"
            );
            ensure!(connected.client.peer == to, "{connected:?}");
        }
    }
    Ok(())
}

shared_test!(exempt_ports);
fn exempt_ports(fixture: &SharedFixture) -> Result<()> {
    for family in [0, 1] {
        for port in [15008, 15020, 15021, 15090] {
            let to = at(POD[family], port);
            let connected = fixture
                .outside
                .dial(Dial::new(&ROOT, to))?
                .map_err(|errno| anyhow::anyhow!("to {to}: errno {errno}"))?;
            ensure!(connected.accepted_by == port, "to {to}: {connected:?}");
            ensure!(original(&connected.server, to) == Ok(to), "{connected:?}");
        }
    }
    Ok(())
}

shared_test!(the_sidecar_reaches_the_app);
fn the_sidecar_reaches_the_app(fixture: &SharedFixture) -> Result<()> {
    // sk_lookup sees these too, and must not send them to the sidecar again.
    for (source, to) in [("127.0.0.6", POD[0]), ("::6", POD[1])] {
        let mut dial = Dial::new(&PROXY, at(to, 80));
        dial.source = Some(at(source, 0));
        let connected = fixture
            .dial(dial)?
            .map_err(|errno| anyhow::anyhow!("errno {errno}"))?;
        ensure!(connected.accepted_by == 80, "{connected:?}");
    }
    let connected = fixture.dial(Dial::new(&APP, at(POD[0], 80)))?;
    connected
        .map(drop)
        .map_err(|errno| anyhow::anyhow!("errno {errno}"))
        .context("app to itself")
}
