//! `sidetrack cleanup`: leave the node as if sidetrack had never been there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use super::{Format, Places, output};
use crate::{
    bpf::{hooks::CGROUP_HOOKS, pins::Pins},
    server::remove_socket,
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
    if pins.root().exists() {
        let Some(_lock) = pins.try_lock()? else {
            bail!(
                "an agent is running on {}: stop it first, or it would lose its hooks",
                places.bpffs.display()
            );
        };
        remove_all(&pins, &mut removed)?;
    }
    if remove_socket(&places.socket)? {
        removed.other.push(places.socket.clone());
    }
    Ok(removed)
}

/// Removes every pin, in an order in which connections made meanwhile are either redirected with
/// everything that belongs to it, or not at all.
fn remove_all(pins: &Pins, removed: &mut Removed) -> Result<()> {
    // What redirects goes before what answers for it.
    for hook in CGROUP_HOOKS.iter().rev() {
        let path = pins.link(hook.name);
        if path.exists() {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
            removed.links.push(path);
        }
    }
    let pods = pins.pods();
    if pods.exists() {
        remove_tree(&pods, &mut removed.links)?;
    }
    remove_tree(pins.root(), &mut removed.maps)
}

/// Removes a directory with all that is in it.
fn remove_tree(dir: &Path, removed: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            remove_tree(&path, removed)?;
        } else {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
            removed.push(path);
        }
    }
    fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))
}

fn print(removed: &Removed) -> Result<()> {
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
