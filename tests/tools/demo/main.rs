//! The demo: two pods with real Envoys and a real httpbin, no iptables. It does what the article
//! "Istio 導入への道 - サービス間通信編" (Istio 1.5) does with kubectl, shows what came out beside what
//! the article shows, and checks every claim.

mod checks;
mod environment;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;
use lab::private::require_root;

use crate::environment::Environment;

/// Two pods with real sidecars, no iptables.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-demo")]
struct Options {
    /// Python environment with Envoy and httpbin.
    #[arg(long, value_name = "DIR", required_unless_present = "down")]
    tools: Option<PathBuf>,
    /// Leave everything up.
    #[arg(long)]
    keep: bool,
    /// Remove what remains of a demo, and do nothing else.
    #[arg(long)]
    down: bool,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let options = Options::parse();
    require_root()?;
    if options.down {
        println!(
            "{}",
            if environment::teardown()? {
                "removed"
            } else {
                "nothing to remove"
            }
        );
        return Ok(ExitCode::SUCCESS);
    }
    environment::teardown().context("remove what remains of an earlier demo")?;
    let mut environment = Environment::new(&options.tools.context("--tools names no directory")?)?;
    let outcome = scenario::run_demo(&mut environment, options.keep);
    if options.keep && outcome.is_ok() {
        environment.keep();
        scenario::what_to_try(&environment);
    }
    let traces = environment.close()?;
    let mut checks = outcome?;
    if !options.keep {
        checks.record(
            "nothing remains",
            traces.is_empty().then_some(()).ok_or(traces),
        );
    }
    Ok(checks.close())
}
