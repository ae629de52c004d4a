//! The comparison with real iptables: builds everything, then runs `sidetrack-compare`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{cargo, exit_code, require_root},
};

#[derive(Debug, Args)]
pub struct Options {
    /// Only this dialect: 1.1, 1.5, 1.8, 1.13 or current
    #[arg(long)]
    dialect: Option<String>,
    /// Only this family: v4 or v6
    #[arg(long)]
    family: Option<String>,
    /// Only this policy
    #[arg(long)]
    policy: Option<String>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("compare")?;
    build::for_running()?;
    let mut command = cargo();
    command
        .args(["run", "--quiet", "--locked", "--package", "sidetrack-tests"])
        .args(["--bin", "sidetrack-compare", "--"]);
    for (flag, value) in [
        ("--dialect", &options.dialect),
        ("--family", &options.family),
        ("--policy", &options.policy),
    ] {
        if let Some(value) = value {
            command.args([flag, value]);
        }
    }
    exit_code(&mut command)
}
