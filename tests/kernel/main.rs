//! Tests against the real kernel: real programs, real sockets, the real agent.
//!
//! Run by `cargo xtask test`, as root. Everything happens in network namespaces, cgroups and a
//! mount namespace made for the run.

mod agent;
mod bad_input;
mod bounds;
mod cluster;
mod cni;
mod half_done;
mod health;
mod inbound;
mod isolation;
mod layouts;
mod lifecycle;
mod mesh;
mod old_kernels;
mod outbound;
mod owner;
mod responsive;
mod security;
mod sockets;
mod updates;
mod users;
mod world;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};
use support::{ledger, private};

use crate::world::World;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // Listing needs neither root nor a world.
    let world = if arguments.list {
        Ok(None)
    } else {
        prepare().map(Some)
    };
    let world = match world {
        Ok(world) => world,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let shared: Vec<(&str, SharedTest)> = [
        outbound::tests(),
        inbound::tests(),
        owner::tests(),
        sockets::tests(),
    ]
    .concat();
    let mut trials: Vec<Trial> = shared
        .into_iter()
        .map(|(name, test)| {
            let world = world.clone();
            Trial::test(name, move || {
                let world = world.ok_or("no world")?;
                test(&world).map_err(failed)
            })
        })
        .collect();
    let own: Vec<(&str, OwnTest)> = [
        agent::tests(),
        bad_input::tests(),
        bounds::tests(),
        cluster::tests(),
        cni::tests(),
        half_done::tests(),
        health::tests(),
        isolation::tests(),
        layouts::tests(),
        lifecycle::tests(),
        mesh::tests(),
        old_kernels::tests(),
        responsive::tests(),
        security::tests(),
        updates::tests(),
        users::tests(),
    ]
    .concat();
    trials.extend(
        own.into_iter()
            .map(|(name, test)| Trial::test(name, move || test().map_err(failed))),
    );
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(world);
    if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// A test in the network that many share.
type SharedTest = fn(&World) -> Result<()>;
/// A test that makes its own.
type OwnTest = fn() -> Result<()>;

fn prepare() -> Result<Arc<World>> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    World::new().map(Arc::new)
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}
