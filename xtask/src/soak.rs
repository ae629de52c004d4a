//! The soak test: builds a second sidetrack to upgrade to and from, then runs `sidetrack-soak`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context as _, Result};

use crate::{
    build::{self, Agent},
    run::{cargo, must, require_root, root},
    setup::Needs,
    tool::{self, Arguments},
};

/// The version that the second build reports.
const VERSION: &str = "0.1.0+soak";
/// The sources of both builds.
const SOURCES: [&str; 5] = ["agent", "common", "ebpf", "Cargo.toml", "Cargo.lock"];

/// Runs the soak test, with a second build unless the caller names one.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut command = tool::program("soak");
    if !arguments.has("--help") && !arguments.has("-h") && !arguments.has("--other") {
        require_root("soak")?;
        command.arg("--other").arg(other_build()?);
    }
    tool::run("soak", Needs::Tests, Agent::Release, command, arguments)
}

/// A second build of the same sources: another version, and sockops programs with other instructions,
/// because they are optimized less. Optimized even less, the verifier refuses them.
fn other_build() -> Result<PathBuf> {
    let dir = root().join("target/soak");
    let binary = dir.join("sidetrack");
    if is_newer(&binary, &SOURCES.map(|source| root().join(source))) {
        return Ok(binary);
    }
    let programs = dir.join("ebpf");
    build::kernel_programs_in(&programs, &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2")])?;
    // In the usual target directory, which has its dependencies.
    must(
        cargo()
            .args(["build", "--release", "--locked", "--package", "sidetrack"])
            .env(
                "SIDETRACK_EBPF",
                programs.join("bpfel-unknown-none/release"),
            )
            .env("SIDETRACK_VERSION", VERSION),
    )?;
    let aside = dir.join("sidetrack.new");
    fs::copy(Agent::Release.path(), &aside)
        .and_then(|_| fs::rename(&aside, &binary))
        .with_context(|| format!("keep the second build as {}", binary.display()))?;
    Ok(binary)
}

/// Whether a file is newer than everything below some paths.
fn is_newer(file: &Path, sources: &[PathBuf]) -> bool {
    let Ok(built) = fs::metadata(file).and_then(|meta| meta.modified()) else {
        return false;
    };
    sources.iter().all(|source| newest(source) < Some(built))
}

/// The latest modification time below a path.
fn newest(path: &Path) -> Option<SystemTime> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_dir() {
        return meta.modified().ok();
    }
    fs::read_dir(path)
        .ok()?
        .flatten()
        .filter_map(|entry| newest(&entry.path()))
        .max()
}
