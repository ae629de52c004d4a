//! What cargo says about the packages of the workspace and their dependencies.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::run::{answer, cargo};

/// A package: one of the workspace, or one that it depends on.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Where its Cargo.toml is.
    pub manifest_path: PathBuf,
    /// The minimum Rust version that it names.
    pub rust_version: Option<String>,
    /// Where it was downloaded from; none for packages of the workspace.
    pub source: Option<String>,
    /// What its Cargo.toml names.
    pub dependencies: Vec<Dependency>,
}

/// A dependency of a package.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// Name of the package.
    pub name: String,
    /// Where it is, for packages of the workspace.
    pub path: Option<PathBuf>,
}

/// Every package that a build for Linux needs.
pub fn packages(manifest: &Path) -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo();
    command
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", &target, "--manifest-path"])
        .arg(manifest);
    let text = answer(&mut command).context("cargo metadata failed")?;
    let metadata: Metadata = serde_json::from_str(&text)?;
    Ok(metadata.packages)
}
