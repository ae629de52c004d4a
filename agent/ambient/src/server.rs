//! Accepts ztunnels.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use sidetrack_base::socket_file::{RemoveOnDrop, SocketFile};
use tokio::{net::UnixListener, sync::Semaphore};
use tracing::{info, warn};

use crate::{packet, session, table::Table};

/// Connections at a time. An upgrade has two ztunnels on a node; more than these are no ztunnels.
const MAX_SESSIONS: usize = 8;
/// Pause after a failure to accept, as when no descriptor is free.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// A bound socket of ZDS. Its file is removed when it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    file: RemoveOnDrop,
}

impl Server {
    /// Binds the socket, which only root may open, and replaces the file of an agent that has ended. ztunnels that
    /// connect wait until [`Table::set`] was called.
    ///
    /// # Errors
    /// If istio-cni or another agent answers there, or the socket cannot be bound.
    pub fn bind(path: &Path) -> Result<Self> {
        if is_answered(path) {
            bail!(
                "istio-cni or another agent serves ztunnel on {}: one of them can. Disable ambient in istio-cni (cni.ambient.enabled=false), or start this agent without --ambient",
                path.display()
            );
        }
        remove_abandoned(path).with_context(|| format!("replace {}", path.display()))?;
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)
                .with_context(|| format!("create {}", directory.display()))?;
        }
        let listener =
            packet::listener(path).with_context(|| format!("bind {}", path.display()))?;
        let file = SocketFile::of(path).with_context(|| format!("look at {}", path.display()))?;
        let file = RemoveOnDrop(file);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .with_context(|| format!("set the mode of {}", path.display()))?;
        Ok(Self { listener, file })
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &SocketFile {
        &self.file.0
    }

    /// Serves until dropped.
    pub async fn serve(self, table: Arc<Table>) {
        let places = Arc::new(Semaphore::new(MAX_SESSIONS));
        let mut sessions = tokio::task::JoinSet::new();
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!("accept a ztunnel: {error}");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            while sessions.try_join_next().is_some() {}
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                warn!("refused a connection of ztunnel: {MAX_SESSIONS} are open");
                continue;
            };
            let table = Arc::clone(&table);
            sessions.spawn(async move {
                match session::run(stream, &table).await {
                    Ok(()) => info!("a ztunnel has gone"),
                    Err(error) => warn!("closed the connection of a ztunnel: {error:#}"),
                }
                drop(place);
            });
        }
    }
}

/// Whether anybody listens for ztunnels at a path.
#[must_use]
pub fn is_answered(path: &Path) -> bool {
    match packet::connected(path) {
        Ok(_) => true,
        // Its backlog is full.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// Removes the socket of an agent that has ended.
fn remove_abandoned(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::Error::other("it is not a socket")),
    }
}
