//! The agent's own life: ends, crashes, successors, cleanup.

mod commands;
mod explain;
mod interception_probe;
mod link_updates;
mod probes;
mod restart;
mod service_manager;
mod silent;
mod single;

use anyhow::{Result, ensure};
use lab::{node::VIP, protocol::APP};

use crate::fixture::at;

fn redirected(client: &lab::actor::Actor) -> Result<()> {
    let connected = client.connect(&APP, at(VIP, 80))?;
    ensure!(connected.accepted_by == 15001, "{connected:?}");
    ensure!(
        connected.server.original_v4 == Ok(at(VIP, 80)),
        "{connected:?}"
    );
    Ok(())
}
