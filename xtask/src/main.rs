//! `cargo xtask`: builds, tests and demonstrates a checkout.

#![forbid(unsafe_code)]

mod apt;
mod arch;
mod archive;
mod build;
mod cli;
mod crates;
mod cross;
mod docs;
mod fuzz;
mod image;
mod lint;
mod mutants;
mod packages;
mod progress;
mod release;
mod run;
mod setup;
mod soak;
mod test;
mod tool;
mod toolchain;
mod unpacked;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use crate::{
    build::Agent,
    cli::{Cli, Command},
};

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
        Command::Docs => docs::build().map(|()| ExitCode::SUCCESS),
        Command::Values => lint::values::write().map(|()| ExitCode::SUCCESS),
        Command::Test(options) => test::run(&options),
        Command::Compare(arguments) => tool::tests("compare", Agent::Debug, &arguments),
        Command::Bench(arguments) => tool::tests("bench", Agent::Release, &arguments),
        Command::Attacks(arguments) => tool::tests("attacks", Agent::Release, &arguments),
        Command::Starts(arguments) => tool::tests("starts", Agent::Release, &arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::E2e(arguments) => tool::e2e(&arguments),
        Command::Image(options) => image::run(&options),
        Command::Release(options) => release::run(&options),
        Command::Packages(options) => packages::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Vm(options) => vm::run(&options),
        Command::Pictures(arguments) => tool::pictures(&arguments),
        Command::Demo(arguments) => tool::demo(&arguments),
    }
}
