//! `sidetrack cleanup`: leave the node as if sidetrack had never been there.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;

use super::{Format, Places, output};
use crate::{
    kernel::{layouts, pins::Pins},
    server::{is_answered, remove_socket},
};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What was removed.
#[derive(Debug, Default, Serialize)]
pub(super) struct Removed {
    links: Vec<PathBuf>,
    maps: Vec<PathBuf>,
    other: Vec<PathBuf>,
    /// What was found and is not sidetrack's.
    left: Vec<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let removed = everything(&options.places)?;
    match options.output {
        Format::Json => output::print_json(&removed)?,
        Format::Table => print(&removed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes everything, unless an agent runs.
pub(super) fn everything(places: &Places) -> Result<Removed> {
    let pins = Pins::new(&places.bpffs)?;
    let mut removed = Removed::default();
    let running = |place: &Path| {
        let place = place.display();
        anyhow!("an agent is running on {place}: stop it first, or it would lose its hooks")
    };
    if is_answered(&places.socket) {
        return Err(running(&places.socket));
    }
    if pins.root().exists() {
        let Some(_lock) = pins.try_lock()? else {
            return Err(running(&places.bpffs));
        };
        let all = layouts::remove_everything(pins.root())?;
        removed = Removed {
            links: all.links,
            maps: all.maps,
            other: all.directories,
            left: all.left,
        };
    }
    if remove_socket(&places.socket)? {
        removed.other.push(places.socket.clone());
    }
    Ok(removed)
}

fn print(removed: &Removed) -> Result<()> {
    for path in &removed.left {
        output::print(format!("left {}: it is not sidetrack's", path.display()))?;
    }
    let all = [&removed.links, &removed.maps, &removed.other];
    if all.iter().all(|paths| paths.is_empty()) {
        return output::print("nothing to remove");
    }
    for path in all.into_iter().flatten() {
        output::print(format!("removed {}", path.display()))?;
    }
    output::print(format!(
        "{} links and {} maps removed; connections that are open go on",
        removed.links.len(),
        removed.maps.len()
    ))
}
