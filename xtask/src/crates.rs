//! Programs from crates.io that xtask runs, built from source in a pinned version.

use std::{fs, path::PathBuf};

use anyhow::Result;

use crate::{
    progress,
    run::{cargo, tools},
};

/// A program and its version.
#[derive(Debug)]
pub struct Program {
    /// Name of the crate, and of its binary.
    pub name: &'static str,
    /// The newest that builds with the minimum Rust version.
    pub version: &'static str,
    /// Features and profile, as options of `cargo install`.
    pub options: &'static [&'static str],
    /// How long the build takes on two cores.
    pub estimate: &'static str,
}

impl Program {
    /// Builds it unless it is there; returns where it is.
    pub fn install(&self) -> Result<PathBuf> {
        let Self { name, version, .. } = self;
        // What cargo has installed, and in which version.
        let installed = fs::read_to_string(tools().join(".crates.toml")).unwrap_or_default();
        if !installed.contains(&format!("\"{name} {version} (")) {
            let mut command = cargo();
            command
                .args(["install", "--locked", name, "--version", version])
                .args(self.options)
                .arg("--root")
                .arg(tools());
            progress::run(
                &format!("building {name} {version}"),
                self.estimate,
                &mut command,
            )?;
        }
        Ok(tools().join("bin").join(name))
    }
}
