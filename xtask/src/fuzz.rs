//! Fuzzing: builds the targets of `tests/fuzz` with libFuzzer and runs them for some time. They start
//! from the committed seeds and the inputs that earlier runs kept.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::{
    build,
    run::{answer, cargo, must, root},
    setup,
};

/// The flags of cargo-fuzz: counters per edge and comparisons that libFuzzer can see. Not
/// AddressSanitizer, which needs a nightly compiler and finds little in code without `unsafe`.
const COVERAGE: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-sanitizer-coverage-stack-depth",
];

#[derive(Debug, Args)]
pub struct Options {
    /// Fuzz only this target
    target: Option<Target>,
    /// Total time of all targets
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Arguments, annotations and environment of a pod
    Policy,
    /// Whole manifest files
    Manifest,
    /// Requests to the webhook
    Webhook,
    /// The kernel's answers about a pod's interfaces, addresses, routes and sockets
    Netlink,
    /// Texts of /proc and of cgroups
    Proc,
    /// Random routing tables, against the kernel's own lookups
    Routes,
}

/// Runs the targets; fails if an input makes one fail.
pub fn run(options: &Options) -> Result<ExitCode> {
    let targets = match options.target {
        Some(target) => vec![target],
        None => Target::value_variants().to_vec(),
    };
    let binaries = build()?;
    let seconds = options.seconds.div_ceil(targets.len() as u64);
    let mut code = ExitCode::SUCCESS;
    for target in targets {
        let value = target.to_possible_value();
        let name = value.as_ref().map(|it| it.get_name()).unwrap_or_default();
        let fuzz = Fuzz {
            name: name.to_owned(),
            binary: binaries.join(name),
            seconds,
        };
        if !fuzz.run()? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Builds the targets and returns their directory.
fn build() -> Result<PathBuf> {
    setup::for_fuzzing()?;
    build::kernel_programs()?;
    let version = answer(Command::new("rustc").current_dir(root()).arg("-vV"));
    let host = version
        .as_deref()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("host: ")))
        .context("`rustc -vV` names no host")?;
    let target_dir = home().join("build");
    must(
        cargo()
            .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
            .env_remove("RUSTFLAGS")
            .args(["build", "--release", "--locked", "--bins"])
            .args(["--features", "libfuzzer", "--manifest-path"])
            .arg(root().join("tests/fuzz/Cargo.toml"))
            // A named target keeps build scripts and macros free of the flags.
            .args(["--target", host, "--target-dir"])
            .arg(&target_dir),
    )
    .context("build the fuzz targets")?;
    Ok(target_dir.join(host).join("release"))
}

/// The directory of builds, inputs and logs; the seeds in the checkout are not changed.
fn home() -> PathBuf {
    root().join("target/fuzz")
}

struct Fuzz {
    name: String,
    binary: PathBuf,
    seconds: u64,
}

impl Fuzz {
    /// Runs one target; true if no input failed.
    fn run(&self) -> Result<bool> {
        let sources = root().join("tests/fuzz");
        let corpus = home().join("corpus").join(&self.name);
        let failures = home().join("failures").join(&self.name);
        for dir in [&corpus, &failures] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let log_path = home().join(format!("{}.log", self.name));
        let log =
            File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
        eprintln!("fuzz: {} for {} s", self.name, self.seconds);
        let mut command = Command::new(&self.binary);
        command
            // New inputs go into the first directory.
            .arg(&corpus)
            .arg(sources.join("seeds").join(&self.name))
            .arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-artifact_prefix={}/", failures.display()))
            // Inputs are a few kilobytes; an input that takes more than this is a failure.
            .args(["-timeout=5", "-rss_limit_mb=2048"])
            .stdout(log.try_clone()?)
            .stderr(log);
        let dictionary = sources.join(format!("{}.dict", self.name));
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        let status = command
            .status()
            .with_context(|| format!("run {}", self.binary.display()))?;
        if status.success() {
            println!("{}: no failure in {} s", self.name, self.seconds);
            return Ok(true);
        }
        println!("{}: {status}", self.name);
        println!("  input and cause  {}", log_path.display());
        println!("  reproduce        {} INPUT", self.binary.display());
        Ok(false)
    }
}
