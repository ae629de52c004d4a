//! The chaos test: builds everything and a second sidetrack to upgrade to and from, then runs
//! `sidetrack-soak`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    build,
    run::{cargo, exit_code, must, require_root, root, tests_program},
    setup,
};

/// What the second build calls itself.
const VERSION: &str = "0.1.0+soak";
/// What either build is made from.
const SOURCES: [&str; 7] = [
    "agent/src",
    "agent/Cargo.toml",
    "common/src",
    "ebpf/src",
    "ebpf/Cargo.toml",
    "Cargo.toml",
    "Cargo.lock",
];

#[derive(Debug, Args)]
pub struct Options {
    /// How long, from 0.05 [default: 10; 1 with --streams]
    #[arg(long)]
    minutes: Option<f64>,
    /// Makes the same choices as the run that printed it; when they take effect is up to the machine
    #[arg(long)]
    seed: Option<u64>,
    /// Instead, hold so many connections open while agents are replaced, and look for stalls
    #[arg(long, value_name = "COUNT")]
    streams: Option<u32>,
    /// The second build of sidetrack [default: one from this checkout, its kernel programs compiled
    /// otherwise]
    #[arg(long, value_name = "PATH")]
    other: Option<PathBuf>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("soak")?;
    setup::everything()?;
    let other = match &options.other {
        Some(path) => std::path::absolute(path)?,
        None => other_build()?,
    };
    build::for_running()?;
    let mut command = tests_program("sidetrack-soak");
    command.arg("--other").arg(other);
    for (flag, value) in [
        ("--minutes", options.minutes.map(|it| it.to_string())),
        ("--seed", options.seed.map(|it| it.to_string())),
        ("--streams", options.streams.map(|it| it.to_string())),
    ] {
        if let Some(value) = value {
            command.args([flag, &value]);
        }
    }
    exit_code(&mut command)
}

/// The same sources as another build: another version, and sockops programs of other instructions,
/// because they are optimized less (still less, and the verifier refuses them).
fn other_build() -> Result<PathBuf> {
    let dir = root().join("target/soak");
    let binary = dir.join("sidetrack");
    if is_newer(&binary, &SOURCES.map(|source| root().join(source))) {
        return Ok(binary);
    }
    let programs = dir.join("ebpf");
    build::kernel_programs_in(&programs, &[("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2")])?;
    // In the usual target directory, where everything it depends on is built.
    must(
        cargo()
            .args(["build", "--release", "--locked", "--package", "sidetrack"])
            .env(
                "SIDETRACK_EBPF",
                programs.join("bpfel-unknown-none/release/sidetrack-ebpf"),
            )
            .env("SIDETRACK_VERSION", VERSION),
    )?;
    let aside = dir.join("sidetrack.new");
    fs::copy(root().join("target/release/sidetrack"), &aside)
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
