//! `sidetrack webhook`: the mutating webhook.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Result;
use clap::{Args, builder::NonEmptyStringValueParser};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::info;

use super::{
    LogFormat, blocking,
    mesh::{MeshFlags, Settings},
    start_logging,
};
use crate::webhook::{
    serve::{Shared, bind, serve},
    tls::Certificates,
};
use sidetrack_policy::select::Enroll;

/// How often the files are looked at.
const FOLLOW: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Answer HTTPS here; port 0 takes any that is free and logs which
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:9443")]
    listen: SocketAddr,
    /// The certificate and those that vouch for it (PEM); changes are followed
    #[arg(long, value_name = "FILE")]
    tls_cert: PathBuf,
    /// The certificate's private key (PEM); changes are followed
    #[arg(long, value_name = "FILE")]
    tls_key: PathBuf,
    /// sidetrack's own image, for the container that takes the place of istio-init
    #[arg(long, value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    gate_image: String,
    /// Which sidecar pods the agents take
    #[arg(long, value_enum, default_value = "labeled")]
    enroll: Enroll,
    #[command(flatten)]
    mesh: MeshFlags,
    /// After SIGTERM, go on for so many seconds: the API server learns late that this webhook is gone
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain: u64,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

pub(super) fn run(options: Options) -> Result<ExitCode> {
    start_logging(options.log_format);
    blocking(webhook(options))
}

async fn webhook(options: Options) -> Result<ExitCode> {
    let mut settings = Settings::new(options.mesh, options.enroll);
    let (mesh_sender, mesh) = watch::channel(Arc::new(settings.read()?));
    let mut certificates = Certificates::new(&options.tls_cert, &options.tls_key);
    let (certificate_sender, certificate) = watch::channel(certificates.read()?);
    let listener = bind(options.listen).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    info!(address = %listener.local_addr()?, "listening");
    let shared = Shared::new(mesh, options.gate_image);
    let mut signaled = async || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let stop = async {
        signaled().await;
        info!(seconds = options.drain, "ending");
        shared.end();
        tokio::select! {
            () = sleep(Duration::from_secs(options.drain)) => {}
            () = signaled() => {}
        }
    };
    let follow = async {
        let mut look = interval(FOLLOW);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if let Some(mesh) = settings.changed() {
                mesh_sender.send_replace(Arc::new(mesh));
            }
            if let Some(certificate) = certificates.changed().await {
                certificate_sender.send_replace(certificate);
            }
        }
    };
    tokio::select! {
        served = serve(listener, certificate, Arc::clone(&shared), stop) => served?,
        () = follow => {}
    }
    Ok(ExitCode::SUCCESS)
}
