//! Removes everything sidetrack has on a node: hooks, maps, pins and the socket.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::{
    control_socket::{is_answered, remove_socket},
    kernel::{layouts, pins::Pins},
};

/// What was removed.
#[derive(Debug, Default, Serialize)]
pub struct Removed {
    /// Pinned links.
    pub links: Vec<PathBuf>,
    /// Pinned maps.
    pub maps: Vec<PathBuf>,
    /// Directories and the socket.
    pub other: Vec<PathBuf>,
    /// Entries sidetrack did not create; they stay.
    pub left: Vec<PathBuf>,
}

/// Removes everything, unless an agent runs.
///
/// # Errors
/// If an agent runs, or something cannot be removed.
pub fn everything(bpffs: &Path, socket: &Path) -> Result<Removed> {
    let pins = Pins::new(bpffs)?;
    let mut removed = Removed::default();
    let running = |place: &Path| {
        let place = place.display();
        anyhow!("an agent is running on {place}: stop it first, or it would lose its hooks")
    };
    if is_answered(socket) {
        return Err(running(socket));
    }
    if pins.root().exists() {
        let Some(_lock) = pins.try_lock()? else {
            return Err(running(bpffs));
        };
        let all = layouts::remove_everything(pins.root())?;
        removed = Removed {
            links: all.links,
            maps: all.maps,
            other: all.directories,
            left: all.left,
        };
    }
    if remove_socket(socket)? {
        removed.other.push(socket.to_owned());
    }
    Ok(removed)
}
