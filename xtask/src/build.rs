//! Builds the kernel programs, then the binary that carries them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use crate::{
    run::{cargo, must, root},
    setup,
    toolchain::{self, Rust},
};

/// Builds everything a user runs.
pub fn release() -> Result<()> {
    kernel_programs()?;
    must(cargo().args(["build", "--release", "--locked", "--package", "sidetrack"]))
}

/// Builds the binary without need of any library on the machine that runs it.
pub fn statically_linked() -> Result<PathBuf> {
    kernel_programs()?;
    // A target that is named keeps what runs while building (macros) out of it.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo();
    command
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .args(["build", "--release", "--locked", "--package", "sidetrack"])
        .args(["--target", &target]);
    must(&mut command)?;
    Ok(root().join("target").join(target).join("release/sidetrack"))
}

/// Builds everything the tests, the comparison and the demo run, after installing what they need.
pub fn for_running() -> Result<()> {
    setup::everything()?;
    release()?;
    must(cargo().args([
        "build",
        "--locked",
        "--package",
        "sidetrack-tests",
        "--bins",
    ]))
}

/// Builds the kernel programs; cargo itself knows whether anything has changed.
pub fn kernel_programs() -> Result<()> {
    kernel_programs_in(&root().join("target/ebpf"), &[])
}

/// Builds them into a target directory, with more environment variables.
pub fn kernel_programs_in(target: &Path, variables: &[(&str, &str)]) -> Result<()> {
    setup::for_building()?;
    let rust = Rust::find().context("no compiler for the kernel programs after setup")?;
    let linker = toolchain::linker().context("no bpf-linker after setup")?;
    let mut command: Command = cargo();
    rust.apply(&mut command);
    command
        .current_dir(root().join("ebpf"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        // The profile of the whole program; debug info is what BTF is made from.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Cdebuginfo=2\u{1f}-Clink-arg=--btf",
        )
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTUP_TOOLCHAIN")
        .args(["build", "--release", "--locked", "-Zbuild-std=core"])
        .args(["--target", "bpfel-unknown-none", "--target-dir"])
        .arg(target)
        .envs(variables.iter().copied());
    must(&mut command).context("build the kernel programs")
}
