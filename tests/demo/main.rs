//! The demo: two pods with real Envoys and a real httpbin, no iptables. It does what the article
//! "Istio 導入への道 - サービス間通信編" (Istio 1.5) does with kubectl, shows what came out beside what
//! the article shows, and checks every claim.

mod checks;
mod envoy;
mod stage;
mod story;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;
use support::private::require_root;

use crate::stage::Stage;

/// Shows two pods with real sidecars and no iptables.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask demo")]
struct Options {
    /// Leave everything up and show what to try
    #[arg(long, conflicts_with = "down")]
    keep: bool,
    /// Remove what --keep left
    #[arg(long)]
    down: bool,
    /// The Python environment with Envoy and httpbin
    #[arg(long, value_name = "DIR", hide = true)]
    tools: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    require_root()?;
    if options.down {
        println!(
            "{}",
            if stage::strike()? {
                "removed"
            } else {
                "nothing to remove"
            }
        );
        return Ok(ExitCode::SUCCESS);
    }
    stage::strike().context("remove what an earlier demo left")?;
    let mut stage = Stage::new(&options.tools)?;
    let outcome = story::tell(&mut stage, options.keep);
    if options.keep && outcome.is_ok() {
        stage.keep();
        story::what_to_try(&stage);
    }
    let traces = stage.close()?;
    let mut checks = outcome?;
    if !options.keep {
        checks.record(
            "nothing is left behind",
            traces.is_empty().then_some(()).ok_or(traces),
        );
    }
    Ok(checks.close())
}
