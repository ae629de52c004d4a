//! Tests against the real kernel: real programs, real sockets, the real agent.
//!
//! Run by `cargo xtask test`, as root. Everything happens in network namespaces, cgroups and a
//! mount namespace made for the run.

#[macro_use]
mod registry;

mod acceleration;
mod agent;
mod ambient;
mod bad_input;
mod bounds;
mod callbacks;
mod cluster;
mod cni;
mod counters;
mod crash_recovery;
mod dns;
mod doctor;
mod events;
mod facilities;
mod failures;
mod fixture;
mod forward;
mod inbound;
mod isolation;
mod lab_network;
mod layouts;
mod lifecycle;
mod localnet;
mod mesh;
mod meshes;
mod mptcp_sidecar;
mod network_plugins;
mod old_kernels;
mod original_destination;
mod outbound;
mod owner;
mod policy_routing;
mod repair;
mod responsive;
mod runs;
mod searches;
mod security;
mod sockets;
mod starts;
mod tables;
mod takeover;
mod targets_v6;
mod trace;
mod translation;
mod transparent;
mod udp;
mod updates;
mod userns;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use lab::{ledger, private};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::{fixture::SharedFixture, registry::KernelTest};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or_else(threads);
    // Listing needs neither root nor a network.
    let fixture = if arguments.list {
        Ok(None)
    } else {
        prepare().map(Some)
    };
    let fixture = match fixture {
        Ok(fixture) => fixture,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials = registry::all()
        .into_iter()
        .map(|test| trial(test, fixture.clone()));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(fixture);
    registry::print_slowest();
    registry::print_skipped();
    if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn trial(test: &'static KernelTest, fixture: Option<Arc<SharedFixture>>) -> Trial {
    Trial::test(test.name(), move || {
        let result = test.run(fixture);
        result.map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// How many tests run at a time: most of them wait for something. One by one where there is one processor.
fn threads() -> Option<usize> {
    const LEAST: usize = 4;
    let processors = std::thread::available_parallelism().ok()?.get();
    (processors > 1).then(|| processors.max(LEAST))
}

fn prepare() -> Result<Arc<SharedFixture>> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    SharedFixture::new().map(Arc::new)
}
