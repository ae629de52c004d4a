//! The comparison with real iptables: builds everything, then runs `sidetrack-compare`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;

use crate::{
    build,
    run::{exit_code, require_root, tests_program},
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
    /// The pod of somebody else, with the rules they have for it
    #[arg(long, value_name = "FILE", requires = "rules")]
    manifest: Option<PathBuf>,
    /// Its rules, as iptables-save prints them
    #[arg(long, value_name = "FILE", requires = "manifest")]
    rules: Option<PathBuf>,
    /// Its IPv6 rules, as ip6tables-save prints them; without them only IPv4 is compared
    #[arg(long, value_name = "FILE", requires = "manifest")]
    rules6: Option<PathBuf>,
    /// Form of the output: table or json
    #[arg(short, long)]
    output: Option<String>,
}

/// Runs it.
pub fn run(options: &Options) -> Result<ExitCode> {
    require_root("compare")?;
    build::for_running()?;
    let mut command = tests_program("sidetrack-compare");
    for (flag, value) in [
        ("--dialect", &options.dialect),
        ("--family", &options.family),
        ("--policy", &options.policy),
        ("--output", &options.output),
    ] {
        if let Some(value) = value {
            command.args([flag, value]);
        }
    }
    for (flag, path) in [
        ("--manifest", &options.manifest),
        ("--rules", &options.rules),
        ("--rules6", &options.rules6),
    ] {
        if let Some(path) = path {
            // The command runs in the checkout, wherever we were called.
            let path = std::path::absolute(path)?;
            command.arg(flag).arg(path);
        }
    }
    exit_code(&mut command)
}
