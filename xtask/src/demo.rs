//! The demo: builds everything, then runs `sidetrack-demo`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{exit_code, require_root, tests_program, tools},
};

#[derive(Debug, Args)]
pub struct Options {
    /// Leave everything up and say what to try
    #[arg(long, conflicts_with = "down")]
    keep: bool,
    /// Remove what --keep left
    #[arg(long)]
    down: bool,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("demo")?;
    if !options.down {
        build::for_running()?;
    }
    let mut command = tests_program("sidetrack-demo");
    command.arg("--tools").arg(tools().join("python"));
    if options.keep {
        command.arg("--keep");
    }
    if options.down {
        command.arg("--down");
    }
    exit_code(&mut command)
}
