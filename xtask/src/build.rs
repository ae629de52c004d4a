//! Builds the kernel programs, then the binaries that carry them.
//!
//! Two profiles: the tests, the demo and the comparison run the agent of the dev profile, so that the
//! dependencies are compiled once for all of them. What is measured or installed is a release build.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, Result};

use crate::{
    arch::Arch,
    cross::Userland,
    progress::Background,
    run::{answer, cargo, must, root},
    setup::{self, Needs},
    toolchain::{self, Rust},
    unpacked,
};

/// Which build of the agent a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// The dev profile's.
    Debug,
    /// The release profile's, as nodes run it.
    Release,
}

impl Agent {
    /// Where its binary is.
    pub fn path(self) -> PathBuf {
        let profile = match self {
            Self::Debug => "debug",
            Self::Release => "release",
        };
        root().join("target").join(profile).join("sidetrack")
    }

    /// Names it to a tool or test, unless the caller's environment names another.
    pub fn given_to(self, command: &mut Command) {
        if std::env::var_os("SIDETRACK_BIN").is_none() {
            command.env("SIDETRACK_BIN", self.path());
        }
    }
}

/// Programs that the demo runs.
const DEMO: [&str; 3] = ["sidetrack", "sidetrack-actor", "sidetrack-demo"];

/// Packages with the programs of the image.
const PACKAGES: [&str; 4] = ["--package", "sidetrack", "--package", "sidetrack-webhook"];

/// The package that a release has beside them.
const PLUGIN: [&str; 2] = ["--package", "kubectl-sidetrack"];

/// Builds what a node runs.
pub fn release() -> Result<()> {
    kernel_programs()?;
    let mut command = cargo();
    name_commit(&mut command);
    must(
        command
            .args(["build", "--release", "--locked"])
            .args(PACKAGES),
    )
}

/// The time of the commit, in seconds, which is what files of a build have as theirs.
pub fn source_date() -> String {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["log", "-1", "--format=%ct"]);
    answer(&mut git).unwrap_or_else(|| "0".to_owned())
}

/// Gives a build the commit that `sidetrack version` shows. A checkout without git's data has none.
fn name_commit(command: &mut Command) {
    let git = |words: &[&str]| answer(Command::new("git").current_dir(root()).args(words));
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        let changes = git(&["status", "--porcelain"]).unwrap_or_default();
        let suffix = if changes.is_empty() { "" } else { "-dirty" };
        command.env("SIDETRACK_COMMIT", commit + suffix);
    }
}

/// Builds the programs without need of any library on the machine that runs them; the folder with them.
pub fn statically_linked(arch: Arch) -> Result<PathBuf> {
    kernel_programs()?;
    let mut command = cargo();
    name_commit(&mut command);
    command
        .args(["build", "--release", "--locked"])
        .args(PACKAGES)
        .args(PLUGIN);
    // A named target keeps build scripts and macros free of these flags.
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(same_paths());
    let maps: Vec<_> = path_maps()
        .into_iter()
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"))
        .collect();
    let triple = arch.triple();
    command.env(
        format!("CFLAGS_{}", triple.replace('-', "_")),
        maps.join(" "),
    );
    Userland::find(arch)?.apply(&mut command, &flags);
    must(&mut command)?;
    Ok(root().join("target").join(triple).join("release"))
}

/// Flags with which a build in another folder, by another user, has the same bytes.
fn same_paths() -> Vec<String> {
    let maps = path_maps().into_iter();
    maps.map(|(from, to)| format!("--remap-path-prefix={from}={to}"))
        .collect()
}

/// Paths of this machine that would get into the binaries, and what stands there instead.
fn path_maps() -> [(String, &'static str); 2] {
    let home = std::env::home_dir().unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or(home.join(".cargo"), PathBuf::from);
    [
        (root().display().to_string(), "/sidetrack"),
        (cargo_home.display().to_string(), "/cargo"),
    ]
}

/// Installs what a command needs and builds everything it runs.
pub fn for_running(needs: Needs, agent: Agent) -> Result<()> {
    // On a first run compiling the dependencies takes longest, and needs nothing that setup installs
    // but a C compiler. The build below does what this one cannot.
    let dependencies = match toolchain::linker() {
        Some(_) => None,
        None => {
            let mut command = test_build(needs);
            command.arg("--keep-going");
            Some(Background::start(
                "compiling dependencies",
                "about three minutes",
                &mut command,
            )?)
        }
    };
    setup::packages_for(needs)?;
    if needs == Needs::Tests {
        unpacked::unpack()?;
    }
    thread::scope(|scope| {
        let python = scope.spawn(|| setup::python(needs));
        setup::linker()?;
        build_kernel_programs(&root().join("target/ebpf"), &[])?;
        python.join().expect("setup does not panic")
    })?;
    if let Some(dependencies) = dependencies {
        dependencies.wait();
    }
    must(&mut test_build(needs))?;
    match agent {
        Agent::Debug => Ok(()),
        Agent::Release => release(),
    }
}

/// Builds what the kernel tests start beside the agent, for another architecture.
pub fn helpers(userland: &Userland) -> Result<()> {
    let mut command = cargo();
    command
        .args(["build", "--locked", "--workspace", "--exclude", "xtask"])
        .args(["--bin", "sidetrack-actor", "--bin", "kubectl-sidetrack"]);
    userland.apply(&mut command, &[]);
    must(&mut command)
}

/// Builds the tests' programs and the agent they run.
pub fn tests() -> Result<()> {
    kernel_programs()?;
    must(&mut test_build(Needs::Tests))
}

/// The shared build of all commands. xtask is omitted because it is running, and for the demo what it does not run:
/// a third of a first build is linking the other tools.
fn test_build(needs: Needs) -> Command {
    let mut command = cargo();
    command
        .args(["build", "--locked", "--workspace", "--exclude", "xtask"])
        // There are no examples: they make cargo choose the features that `cargo test` chooses, and
        // what is compiled here is compiled for the tests as well.
        .arg("--examples");
    match needs {
        Needs::Demo => command.args(DEMO.iter().flat_map(|name| ["--bin", name])),
        Needs::Tests => command.arg("--bins"),
    };
    command
}

/// Builds the kernel programs; cargo decides whether anything has changed.
pub fn kernel_programs() -> Result<()> {
    kernel_programs_in(&root().join("target/ebpf"), &[])
}

/// Builds them into a target directory, with more environment variables.
pub fn kernel_programs_in(target: &Path, variables: &[(&str, &str)]) -> Result<()> {
    setup::for_building()?;
    build_kernel_programs(target, variables)
}

fn build_kernel_programs(target: &Path, variables: &[(&str, &str)]) -> Result<()> {
    let rust = Rust::find().context("no compiler for the kernel programs after setup")?;
    let mut command = cargo();
    command.arg("build");
    for_kernel(&mut command, &rust, target)?;
    must(command.envs(variables.iter().copied())).context("build the kernel programs")
}

/// Checks the kernel programs for their own target, with the clippy of the compiler that builds them.
pub fn lint_kernel_programs() -> Result<()> {
    let rust = Rust::find().context("no compiler for the kernel programs after setup")?;
    let mut command = Command::new(rust.clippy()?);
    command.arg("clippy");
    for_kernel(&mut command, &rust, &root().join("target/ebpf"))?;
    must(command.args(["--", "-D", "warnings"])).context("check the kernel programs")
}

/// What every command of cargo needs for the kernel programs.
fn for_kernel(command: &mut Command, rust: &Rust, target: &Path) -> Result<()> {
    let linker = toolchain::linker().context("no bpf-linker after setup")?;
    rust.apply(command);
    let mut flags = vec!["-Cdebuginfo=2".to_owned(), "-Clink-arg=--btf".to_owned()];
    // BTF names source files.
    flags.extend(same_paths());
    command
        .current_dir(root().join("ebpf"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker)
        // The profile of the whole program; debug info is what BTF is made from.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTUP_TOOLCHAIN")
        .args(["--release", "--locked", "-Zbuild-std=core"])
        .args(["--target", "bpfel-unknown-none", "--target-dir"])
        .arg(target);
    Ok(())
}
