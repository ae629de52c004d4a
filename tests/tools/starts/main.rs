//! Pods that start, by the hundred: does any connection get past the sidecar, and what does it cost?

mod loops;
mod report;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use lab::{ledger, private};

use crate::{loops::Environment, report::Report};

/// Starts pods whose app connects out at once, with and without the CNI plugin.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask starts")]
struct Options {
    /// How many pods to start with the plugin, and again while agents are killed
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pods: u32,
    /// How many pods the node has already
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(0..=1000))]
    node: u32,
    /// Form of the output
    #[arg(short, long, value_enum, default_value = "table")]
    output: report::Format,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("starts: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let mut environment = Environment::new(options.node)?;
    let report = Report {
        node: options.node,
        plugin: environment.with_plugin(options.pods)?,
        kills: environment.with_kills(options.pods)?,
        gate: environment.without_plugin(options.pods.div_ceil(10))?,
    };
    report.print(options.output)
}
