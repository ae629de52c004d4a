//! The webhook as a process: follows its files, serves, and drains.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Result;
use clap::{Parser, builder::NonEmptyStringValueParser};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::info;

use super::{
    serve::{Shared, bind, serve},
    tls::Certificates,
};
use sidetrack_base::{
    duration::duration, log::LogFormat, mesh_flags::MeshFlags, mesh_settings::MeshSettings,
};
use sidetrack_policy::select::Enroll;

/// How often the files are looked at.
const FOLLOW: Duration = Duration::from_millis(250);

/// Answer the API server: remove istio-init from pods that the agents enroll.
#[derive(Debug, Parser)]
#[command(name = "sidetrack-webhook", version = sidetrack_base::VERSION, max_term_width = 100)]
pub(crate) struct Options {
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
    pub(crate) enroll: Enroll,
    #[command(flatten)]
    pub(crate) mesh: MeshFlags,
    /// How long to keep serving after SIGTERM: the API server may still send requests here
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    drain: Duration,
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// Serves until a signal, then drains. A second signal ends the drain.
///
/// # Errors
/// If it cannot start.
pub(crate) async fn run(options: Options, mut settings: MeshSettings) -> Result<()> {
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
        info!(drain = ?options.drain, "ending");
        shared.end();
        tokio::select! {
            () = sleep(options.drain) => {}
            () = signaled() => {}
        }
    };
    let follow = async {
        let mut look = interval(FOLLOW);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if let Some(mesh) = settings.changed().await {
                mesh_sender.send_replace(Arc::new(mesh));
            }
            if let Some(certificate) = certificates.changed().await {
                certificate_sender.send_replace(certificate);
            }
            shared.set_invalid(certificates.invalid());
        }
    };
    tokio::select! {
        () = serve(listener, certificate, Arc::clone(&shared), stop) => {}
        () = follow => {}
    }
    Ok(())
}
