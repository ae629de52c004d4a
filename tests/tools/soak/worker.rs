//! The same program inside a pod: joins its namespace and cgroup, becomes its user, and works.

mod dial;
mod flood;
mod serve;
mod stream;

use std::process::ExitCode;

use anyhow::Result;
use lab::helper::{self, say};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::wire::{Order, Work};

/// Runs as a worker if the command line says so.
pub fn run_if_worker() -> Option<ExitCode> {
    helper::run_if_helper(work)
}

fn work(work: Work) -> Result<()> {
    // A flood takes a descriptor per connection.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    match work {
        Work::Serve { who, ports } => serve::run(who, &ports),
        Work::Hang { ports } => serve::hang(&ports),
        Work::Dial {
            threads,
            pause,
            seed,
        } => dial::run(threads, pause, seed),
        Work::Flood { to, each } => flood::run(&to, each),
        Work::Stream { to, count } => stream::run(to, count),
        Work::Echo { ports } => stream::echo(&ports),
    }
}

/// The orders on stdin, to its end.
fn orders() -> impl Iterator<Item = Result<Order>> {
    helper::requests()
}
