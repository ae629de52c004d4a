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

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, builder::NonEmptyStringValueParser};
use sidetrack_base::{
    duration::duration,
    log::{self, LogFormat},
    mesh_flags::MeshFlags,
    runtime::{block_on, exit_code},
};
use sidetrack_policy::select::Enroll;

use self::run::run;

/// Answer the API server: remove istio-init from pods that the agents enroll.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-webhook", version = sidetrack_base::VERSION, max_term_width = 100)]
struct Options {
    /// Answer HTTPS here. Port 0 takes a free port and logs it
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:9443")]
    listen: SocketAddr,
    /// The certificate and its chain (PEM). Changes are followed
    #[arg(long, value_name = "FILE")]
    tls_cert: PathBuf,
    /// The certificate's private key (PEM). Changes are followed
    #[arg(long, value_name = "FILE")]
    tls_key: PathBuf,
    /// sidetrack's own image, for the container that replaces istio-init
    #[arg(long, value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    gate_image: String,
    /// Which sidecar pods the agents enroll
    #[arg(long, value_enum, default_value = "labeled")]
    enroll: Enroll,
    #[command(flatten)]
    mesh: MeshFlags,
    /// How long to keep serving after SIGTERM: the API server may still send requests here
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    drain: Duration,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

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
