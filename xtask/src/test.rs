//! Every test: unit tests of the crates, then the tests against the real kernel.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{cargo, exit_code, require_root},
};

#[derive(Debug, Args)]
pub struct Options {
    /// Run only tests whose name contains this
    filter: Option<String>,
}

/// Runs them.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("test")?;
    build::for_running()?;
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace"]);
    if let Some(filter) = &options.filter {
        command.args(["--", filter]);
    }
    exit_code(&mut command)
}
