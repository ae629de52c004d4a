//! `kubectl sidetrack completions` and `man`: what distributions and packages put beside the binary.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, Command};
use sidetrack_live::documents::{Shell, write_manual};

use crate::output;

/// The name of the binary, which shells complete. kubectl finds plugins by it.
const BINARY: &str = "kubectl-sidetrack";

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct Man {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn completions(options: &Completions, mut command: Command) -> Result<ExitCode> {
    output::print(&options.shell.script(&mut command, BINARY))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn man(options: &Man, command: Command) -> Result<ExitCode> {
    // Pages are named after the binary, not after how kubectl calls it.
    write_manual(command.bin_name(BINARY), &options.directory)?;
    Ok(ExitCode::SUCCESS)
}
