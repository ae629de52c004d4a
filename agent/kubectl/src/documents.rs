//! `kubectl sidetrack completions` and `man`: what distributions and packages put beside the binary.

use std::{fs, io, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::aot;

/// The name of the binary, which shells complete. kubectl finds plugins by it.
const BINARY: &str = "kubectl-sidetrack";

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(super) struct Man {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn completions(options: &Completions, mut command: Command) -> Result<ExitCode> {
    let shell = match options.shell {
        Shell::Bash => aot::Shell::Bash,
        Shell::Zsh => aot::Shell::Zsh,
        Shell::Fish => aot::Shell::Fish,
    };
    let mut script = Vec::new();
    aot::generate(shell, &mut command, BINARY, &mut script);
    io::copy(&mut &script[..], &mut io::stdout()).context("print the script")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn man(options: &Man, command: Command) -> Result<ExitCode> {
    let directory = &options.directory;
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    // Pages are named after the binary, not after how kubectl calls it.
    clap_mangen::generate_to(command.bin_name(BINARY), directory)
        .with_context(|| format!("write manual pages into {}", directory.display()))?;
    println!("wrote manual pages into {}", directory.display());
    Ok(ExitCode::SUCCESS)
}
