//! Pods as kubelet starts them: through CRI, by Debian's containerd and runc, with the CNI plugin
//! behind the network's own.
//!
//! Run by `cargo xtask test`, as root. One containerd serves all tests, and one agent those that do not
//! end it.

#[macro_use]
mod registry;

mod cgroups;
mod client;
mod containerd;
mod fixture;
mod image;
mod kubelet;
mod messages;
mod pods;

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use lab::{ledger, private};
use libtest_mimic::{Arguments, Trial};

use crate::fixture::Fixture;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each test looks for what remains after it, and the agent ends with the thread it was started by.
    arguments.test_threads = Some(1);
    let tests = registry::all();
    let filter = arguments.filter.clone().unwrap_or_default();
    let any = tests.iter().any(|test| test.name().contains(&filter));
    // Listing needs neither root nor a node; a filter that leaves nothing needs none either.
    let node = if arguments.list || !any {
        Ok(None)
    } else {
        prepare().map(Some)
    };
    let node = match node {
        Ok(node) => node,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials = tests.into_iter().map(|test| {
        let node = node.clone();
        Trial::test(test.name(), move || {
            let node = node.ok_or("no node")?;
            let result = node.start_agent().and_then(|()| (test.run)(&node));
            // For the next test's sake, if this one failed.
            let cleaned = node.containerd.remove_all();
            let result = result.and(cleaned);
            result.map_err(|error| format!("{error:#}").into())
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(node);
    if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn prepare() -> Result<Arc<Fixture>> {
    private::require_root()?;
    private::enter()?;
    containerd::cover_places()?;
    ledger::sweep()?;
    Fixture::new().map(Arc::new)
}
