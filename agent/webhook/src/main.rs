//! The mutating webhook: it removes istio-init from pods that the agents enroll.
//!
//! A program of its own: it faces the network, has no privileges, and carries no kernel code. What it answers is
//! [`sidetrack_policy::webhook`].

#![forbid(unsafe_code)]

mod body;
mod readers;
mod run;
mod serve;
mod tls;

use std::process::ExitCode;

use clap::Parser as _;
use sidetrack_base::{
    log,
    runtime::{block_on, exit_code},
};

use self::run::{Options, run};

fn main() -> ExitCode {
    let options = Options::parse();
    let settings = options.mesh.clone().settings(options.enroll);
    let settings = settings.unwrap_or_else(|problem| {
        let kind = clap::error::ErrorKind::ArgumentConflict;
        clap::Error::raw(kind, format!("{problem}\n")).exit()
    });
    let log = match log::start(options.log_format) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("start the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = block_on(run(options, settings))
        .map_err(anyhow::Error::from)
        .flatten();
    if let Err(error) = &served {
        log.line(&format!("{error:#}"));
    }
    exit_code(served.is_ok())
}
