//! The outbound table of docs/semantics.md, each row over real sockets in both families.

mod app;
mod proxy;
mod routes;

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lab::protocol::{Dial, Identity};

use crate::fixture::{Arrives, SharedFixture, VIP, at, check, ip, original};

impl SharedFixture {
    /// One row: who, to where, with what outcome.
    fn row(
        &self,
        creator: &Identity,
        destination: SocketAddr,
        arrives: Arrives,
        seen_as: &str,
    ) -> Result<()> {
        let dial = Dial::new(creator, destination);
        self.row_of(dial, arrives, seen_as)
    }

    /// The same for a socket that is bound to an address.
    fn row_from(
        &self,
        creator: &Identity,
        source: &str,
        destination: SocketAddr,
        arrives: Arrives,
        seen_as: &str,
    ) -> Result<()> {
        let mut dial = Dial::new(creator, destination);
        dial.source = Some(at(source, 0));
        self.row_of(dial, arrives, seen_as)
    }

    /// A connection that leaves the pod untouched. Outside the pod no program answers SO_ORIGINAL_DST.
    fn leaves(&self, creator: &Identity, to: SocketAddr, seen_as: &str) -> Result<()> {
        let connected = self.connect(creator, to)?;
        ensure!(
            connected.server.local == to && connected.client.peer == to,
            "{connected:?}"
        );
        ensure!(connected.server.peer.ip() == ip(seen_as), "{connected:?}");
        // Connection tracking would record the client's end with the address it dialed.
        ensure!(original(&connected.client, to) == Ok(to), "{connected:?}");
        Ok(())
    }

    fn row_of(&self, dial: Dial, arrives: Arrives, seen_as: &str) -> Result<()> {
        let (destination, source) = (dial.destination, dial.source);
        let case = format!("uid {} from {source:?} to {destination}", dial.creator.uid);
        check(&self.dial(dial)?, arrives, seen_as, destination).context(case)
    }
}

/// Outside the pod no program answers SO_ORIGINAL_DST. So for untouched off-pod connections only
/// the addresses at the accepting end are checked.
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
        ensure!(connected.server.peer.ip() == ip(seen_as), "{connected:?}");
        return Ok(());
    }
    check(result, arrives, seen_as, destination)
}
