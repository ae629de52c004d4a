//! The benchmark: builds everything, then runs `sidetrack-bench`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{exit_code, require_root, tests_program},
};

#[derive(Debug, Args)]
pub struct Options {
    /// How many times every contestant has its turn, 3 to 1000
    #[arg(long, default_value = "30")]
    rounds: u32,
    /// Form of the output: table or json
    #[arg(short, long, default_value = "table")]
    output: String,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("bench")?;
    build::for_running()?;
    let mut command = tests_program("sidetrack-bench");
    command.args(["--rounds", &options.rounds.to_string()]);
    command.args(["--output", &options.output]);
    exit_code(&mut command)
}
