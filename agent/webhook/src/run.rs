//! The webhook as a process: follows its files, serves, and drains.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::info;

use super::{
    Options,
    serve::{Shared, bind, serve},
    tls::Certificates,
};
use sidetrack_base::mesh_settings::MeshSettings;

/// How often the files are looked at.
const FOLLOW: Duration = Duration::from_millis(250);

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
