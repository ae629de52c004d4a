//! What distributions and packages put beside a binary: scripts for shells, and manual pages.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::aot;

use crate::output::print;

/// A shell whose completion scripts can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// Arguments of a command that prints a completion script.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints the script for a binary.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn run(&self, mut command: Command, binary: &str) -> Result<ExitCode> {
        let generator = match self.shell {
            Shell::Bash => aot::Shell::Bash,
            Shell::Zsh => aot::Shell::Zsh,
            Shell::Fish => aot::Shell::Fish,
        };
        let mut script = Vec::new();
        aot::generate(generator, &mut command, binary, &mut script);
        print(String::from_utf8_lossy(&script).trim_end())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Arguments of a command that writes manual pages.
#[derive(Debug, Args)]
pub struct Man {
    /// Where to write the pages; the directory is created if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    /// Writes a page for each command of a binary, and says so. Pages are named after the binary, not after how kubectl
    /// calls it.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn run(&self, command: Command, binary: &str) -> Result<ExitCode> {
        let directory = self.directory.display();
        fs::create_dir_all(&self.directory).with_context(|| format!("create {directory}"))?;
        clap_mangen::generate_to(command.bin_name(binary.to_owned()), &self.directory)
            .with_context(|| format!("write manual pages into {directory}"))?;
        print(format!("wrote manual pages into {directory}"))?;
        Ok(ExitCode::SUCCESS)
    }
}
