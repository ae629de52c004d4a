//! Every test: unit tests of the crates, the tests against the real kernel, and a short comparison with
//! iptables.

use std::{env, process::ExitCode, thread};

use anyhow::Result;
use clap::Args;

use crate::{
    build::{self, Agent},
    run::{cargo, exit_code, must, require_root, root},
    setup::Needs,
    tool,
};

/// What says to each test harness how many tests it runs at a time. Those of `kernel`, `cri` and `monitoring` have
/// numbers of their own.
const THREADS: &str = "RUST_TEST_THREADS";
/// Most tests wait: for a process, a time limit, an answer.
const LEAST_THREADS: usize = 8;

#[derive(Debug, Args)]
pub struct Options {
    /// Run only tests with this in their name; options such as --exact go to the test harness
    #[arg(value_name = "NAME AND OPTIONS", trailing_var_arg = true)]
    #[arg(allow_hyphen_values = true)]
    harness: Vec<String>,
}

/// Runs them.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("test")?;
    build::for_running(Needs::Tests, Agent::Debug)?;
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace"]);
    // Documentation tests have no names that one would type, and looking for them takes seconds in each crate.
    if options.harness.iter().any(|word| !word.starts_with('-')) {
        command.arg("--tests");
    }
    command.arg("--").args(&options.harness);
    if env::var_os(THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        command.env(THREADS, processors.max(LEAST_THREADS).to_string());
    }
    Agent::Debug.given_to(&mut command);
    must(&mut command)?;
    if options.harness.is_empty() {
        compare()
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// Compares the default policy with iptables, and injected pods with rules: a few seconds of what `cargo xtask compare` does.
fn compare() -> Result<ExitCode> {
    println!("\nComparing the default policy with iptables");
    let mut command = tool::program("compare");
    command.args(["--policy", "default", "--dialect", "current"]);
    command.args(["--family", "v4"]);
    Agent::Debug.given_to(&mut command);
    let code = exit_code(&mut command)?;
    if code != ExitCode::SUCCESS {
        return Ok(code);
    }
    println!("\nComparing injected pods with their meshes' own rules");
    let mut command = tool::program("compare");
    command.arg("--injected").arg(root().join("tests/injected"));
    Agent::Debug.given_to(&mut command);
    exit_code(&mut command)
}
