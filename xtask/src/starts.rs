//! Pods that start: builds everything, then runs `sidetrack-starts`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{exit_code, require_root, tests_program},
};

#[derive(Debug, Args)]
pub struct Options {
    /// How many pods to start with the plugin, and again while agents are killed
    #[arg(long, default_value = "1000")]
    pods: u32,
    /// How many pods the node has already
    #[arg(long, default_value = "250")]
    node: u32,
    /// Form of the output: table or json
    #[arg(short, long, default_value = "table")]
    output: String,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("starts")?;
    build::for_running()?;
    let mut command = tests_program("sidetrack-starts");
    command.args(["--pods", &options.pods.to_string()]);
    command.args(["--node", &options.node.to_string()]);
    command.args(["--output", &options.output]);
    exit_code(&mut command)
}
