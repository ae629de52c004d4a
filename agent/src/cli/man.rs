//! `sidetrack man`: manual pages, one for each command.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, CommandFactory as _};

use super::{Cli, output};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack man /usr/local/share/man/man1")]
pub(super) struct Options {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let directory = &options.directory;
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("write manual pages into {}", directory.display()))?;
    output::print(format!("wrote manual pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
