//! `sidetrack cleanup`: remove everything from the node.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::{Format, Places, output};
use crate::cleanup::{self, Removed};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let removed = cleanup::everything(&options.places.bpffs, &options.places.socket)?;
    match options.output {
        Format::Json => output::print_json(&removed)?,
        Format::Table => print(&removed)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print(removed: &Removed) -> Result<()> {
    for path in &removed.left {
        output::print(format!(
            "left {}: sidetrack did not create it",
            path.display()
        ))?;
    }
    let all = [&removed.links, &removed.maps, &removed.other];
    if all.iter().all(|paths| paths.is_empty()) {
        return output::print("nothing to remove");
    }
    for path in all.into_iter().flatten() {
        output::print(format!("removed {}", path.display()))?;
    }
    output::print(format!(
        "{} links and {} maps removed; open connections continue; new ones go direct",
        removed.links.len(),
        removed.maps.len()
    ))
}
