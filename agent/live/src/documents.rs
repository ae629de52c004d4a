//! What distributions and packages put beside a binary: scripts for shells, and manual pages.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap::{Command, ValueEnum};
use clap_complete::aot;

/// A shell whose completion scripts can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

impl Shell {
    /// The completion script of a binary.
    #[must_use]
    pub fn script(self, command: &mut Command, binary: &str) -> String {
        let generator = match self {
            Self::Bash => aot::Shell::Bash,
            Self::Zsh => aot::Shell::Zsh,
            Self::Fish => aot::Shell::Fish,
        };
        let mut script = Vec::new();
        aot::generate(generator, command, binary, &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// Writes manual pages, one for each command, and says so.
///
/// # Errors
/// If the directory cannot be written.
pub fn write_manual(command: Command, directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("write manual pages into {}", directory.display()))?;
    crate::output::print(format!("wrote manual pages into {}", directory.display()))
}
