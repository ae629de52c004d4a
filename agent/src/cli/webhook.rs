//! `sidetrack webhook`: the mutating webhook's arguments.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Args, builder::NonEmptyStringValueParser};

use super::{LogFormat, duration::duration, mesh::MeshFlags, start_logging};
use crate::{
    runtime::block_on,
    webhook::run::{Config, run as webhook},
};
use sidetrack_policy::select::Enroll;

#[derive(Debug, Args)]
pub(super) struct Options {
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

pub(super) fn run(options: Options) -> Result<ExitCode> {
    start_logging(options.log_format);
    let config = Config {
        listen: options.listen,
        tls_cert: options.tls_cert,
        tls_key: options.tls_key,
        gate_image: options.gate_image,
        settings: options.mesh.settings(options.enroll),
        drain: options.drain,
    };
    block_on(webhook(config))??;
    Ok(ExitCode::SUCCESS)
}
