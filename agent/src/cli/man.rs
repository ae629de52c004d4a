//! `sidetrack man`: manual pages, one for each command.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Args, CommandFactory as _};

use sidetrack_live::documents::write_manual;

use super::Cli;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack man /usr/local/share/man/man1")]
pub(super) struct Options {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    write_manual(Cli::command(), &options.directory)?;
    Ok(ExitCode::SUCCESS)
}
