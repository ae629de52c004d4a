//! The demo: two pods with real Envoys and a real httpbin, no iptables. It does what the article
//! "Istio 導入への道 - サービス間通信編" (Istio 1.5) does with kubectl, shows what came out beside what
//! the article shows, and checks every claim.

mod checks;
mod environment;
mod envoy;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use lab::private::require_root;

use crate::environment::Environment;

/// What the command line said.
struct Options {
    tools: PathBuf,
    keep: bool,
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

fn options() -> Result<Options> {
    let mut options = Options {
        tools: PathBuf::new(),
        keep: false,
        down: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--tools" => options.tools = words.next().context("--tools needs a path")?.into(),
            "--keep" => options.keep = true,
            "--down" => options.down = true,
            _ => bail!("unknown option {word}; run `cargo xtask demo --help`"),
        }
    }
    Ok(options)
}

fn run() -> Result<ExitCode> {
    let options = options()?;
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
    environment::teardown().context("remove what an earlier demo left")?;
    let mut environment = Environment::new(&options.tools)?;
    let outcome = scenario::run(&mut environment, options.keep);
    if options.keep && outcome.is_ok() {
        environment.keep();
        scenario::what_to_try(&environment);
    }
    let traces = environment.close()?;
    let mut checks = outcome?;
    if !options.keep {
        checks.record(
            "nothing is left behind",
            traces.is_empty().then_some(()).ok_or(traces),
        );
    }
    Ok(checks.close())
}
