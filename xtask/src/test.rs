//! Every test: unit tests of the crates, then the tests against the real kernel.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build::{self, Agent},
    run::{cargo, exit_code, require_root},
    setup::Needs,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Run only tests with this in their name; options such as --exact go to the test harness
    #[arg(value_name = "NAME AND OPTIONS", trailing_var_arg = true)]
    #[arg(allow_hyphen_values = true)]
    harness: Vec<String>,
}

/// Runs them.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("test")?;
    build::for_running(Needs::Tests, Agent::Debug)?;
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--"]);
    command.args(&options.harness);
    Agent::Debug.given_to(&mut command);
    exit_code(&mut command)
}
