//! `sidetrack cleanup`: leave the node as if sidetrack had never been there.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde::Serialize;

use super::{Format, Places, output};
use crate::bpf::pins::Pins;

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
struct Removed {
    links: Vec<PathBuf>,
    maps: Vec<PathBuf>,
    other: Vec<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let pins = Pins::new(&options.places.bpffs)?;
    let mut removed = Removed::default();
    if pins.root().exists() {
        let Some(_lock) = pins.try_lock()? else {
            bail!(
                "an agent is running on {}: stop it first, or it would lose its hooks",
                options.places.bpffs.display()
            );
        };
        // Links first: without programs nobody misses the maps.
        remove(pins.root(), "links", &mut removed)?;
        remove(pins.root(), "", &mut removed)?;
    }
    match fs::remove_file(&options.places.socket) {
        Ok(()) => removed.other.push(options.places.socket.clone()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error)
                .with_context(|| format!("remove {}", options.places.socket.display()));
        }
    }
    match options.output {
        Format::Json => output::print_json(&removed)?,
        Format::Table => print(&removed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes what is below a directory: with a `kind`, only files whose path has that component (or
/// are pods' links); without, everything and the directory itself.
fn remove(dir: &Path, kind: &str, removed: &mut Removed) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            remove(&path, kind, removed)?;
            continue;
        }
        let is_link = path.components().any(|part| {
            let part = part.as_os_str();
            part == "links" || part == "pods"
        });
        if kind.is_empty() || is_link {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
            if is_link {
                &mut removed.links
            } else {
                &mut removed.maps
            }
            .push(path);
        }
    }
    if kind.is_empty() {
        fs::remove_dir(dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    Ok(())
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
