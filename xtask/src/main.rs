//! `cargo xtask`: everything a checkout can be told to do.

mod bench;
mod build;
mod compare;
mod demo;
mod fuzz;
mod image;
mod lint;
mod run;
mod setup;
mod soak;
mod starts;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Builds, tests and demonstrates sidetrack.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the other commands need (they call it themselves)
    Setup,
    /// Build the kernel programs and the sidetrack binary
    Build,
    /// Check formatting and lints
    Lint,
    /// Run every test, against the real kernel (needs root)
    Test(test::Options),
    /// Make the same connections through sidetrack and through real iptables and compare (needs root)
    Compare(compare::Options),
    /// Measure what interception costs, against iptables and against nothing (needs root)
    Bench(bench::Options),
    /// Start pods by the hundred and see whether a connection gets past the sidecar (needs root)
    Starts(starts::Options),
    /// Kill, upgrade, change and restart everything under traffic, and account for every connection
    /// (needs root)
    Soak(soak::Options),
    /// Build the OCI image and run `sidetrack doctor` from it (needs root)
    Image(image::Options),
    /// Feed the agent's parsers with what nobody would write
    Fuzz(fuzz::Options),
    /// Run the tests against the real kernel on Debian's kernels, in QEMU (needs root)
    Vm(vm::Options),
    /// Show two pods with real sidecars and no iptables (needs root)
    Demo(demo::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    match command {
        Command::Setup => setup::everything().map(|()| ExitCode::SUCCESS),
        Command::Build => build::release().map(|()| ExitCode::SUCCESS),
        Command::Lint => lint::run().map(|()| ExitCode::SUCCESS),
        Command::Test(options) => test::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Starts(options) => starts::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Image(options) => image::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Vm(options) => vm::run(&options),
        Command::Demo(options) => demo::run(&options),
    }
}
