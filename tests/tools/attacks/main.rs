//! Attacks on a running agent and a running webhook: what can ordinary pods, objects, processes and clients do to
//! the node and to others?
//!
//! Each attack runs against a process with the memory limit of the chart. Beside it a healthy pod keeps connecting,
//! a new pod is enrolled, and health is asked for. One line for each attack.

mod agent;
mod maps;
mod memory;
mod objects;
mod report;
mod sockets;
mod webhook;
mod witness;
mod world;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use lab::{ledger, private};

use crate::{report::Report, world::World};

/// Attacks an agent and a webhook that have the chart's memory limits, and looks at what happens to others.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask attacks")]
struct Options {
    /// Only attacks whose name contains this
    #[arg(value_name = "TEXT")]
    only: Option<String>,
    /// List the attacks
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("attacks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let is_wanted = |name: &str| {
        let only = options.only.as_deref();
        only.is_none_or(|text| name.contains(text))
    };
    if options.list {
        for name in agent::names().chain(webhook::names()) {
            println!("{name}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let mut report = Report::begin();
    if agent::names().any(is_wanted) {
        let mut world = World::new()?;
        agent::run(&mut world, &is_wanted, &mut report);
        world.rest(&mut report);
        report.add("every map full", maps::fill(&mut world));
    }
    webhook::run(&is_wanted, &mut report)?;
    Ok(report.end())
}
