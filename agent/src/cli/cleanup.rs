//! `sidetrack cleanup`: remove everything from the node.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::{Format, Places, output, pods};
use crate::{
    api::PodStatus,
    cleanup::{self, Removed},
};
use sidetrack_base::runtime::{block_on, until_signal};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Only show what would be removed, and which pods would no longer be intercepted
    #[arg(long)]
    dry_run: bool,
    /// Stay afterwards until a signal comes, for a DaemonSet that cleans up every node
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
    /// Directory of network configurations, from which the CNI plugin's entry is removed
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    #[command(flatten)]
    places: Places,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What is shown.
#[derive(Debug, Serialize)]
struct Report {
    /// Pods that were intercepted until then.
    pods: Vec<String>,
    #[serde(flatten)]
    removed: Removed,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let places = &options.places;
    // Without rows that can be read there may still be something to remove.
    let pods = pods::pinned(places).unwrap_or_default();
    let pods = pods.iter().map(PodStatus::full_name).collect();
    let what = if options.dry_run {
        cleanup::preview
    } else {
        cleanup::everything
    };
    let removed = what(&places.bpffs, &places.socket, Some(&options.cni_conf_dir))?;
    let report = Report { pods, removed };
    if !output::print_value(options.output, &report)? {
        print(&report, options.dry_run)?;
    }
    if options.stay {
        block_on(until_signal())??;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report, dry_run: bool) -> Result<()> {
    let done = if dry_run { "would remove" } else { "removed" };
    let removed = &report.removed;
    for path in &removed.left {
        output::print(format!(
            "left {}: sidetrack did not create it, or another agent uses it",
            path.display()
        ))?;
    }
    for path in &removed.plugin {
        output::print(format!(
            "{done} the CNI plugin's entry in {}",
            path.display()
        ))?;
    }
    let all = [&removed.links, &removed.maps, &removed.other];
    if all.iter().all(|paths| paths.is_empty()) {
        return if removed.plugin.is_empty() {
            output::print("nothing to remove")
        } else {
            Ok(())
        };
    }
    for path in all.into_iter().flatten() {
        output::print(format!("{done} {}", path.display()))?;
    }
    let (links, maps) = (removed.links.len(), removed.maps.len());
    output::print(if dry_run {
        format!(
            "{links} links and {maps} maps; intercepted now: {}",
            names(&report.pods)
        )
    } else {
        format!(
            "{links} links and {maps} maps removed; open connections continue, new ones go direct. No longer intercepted: {}",
            names(&report.pods)
        )
    })
}

/// Names in a row.
fn names(pods: &[String]) -> String {
    if pods.is_empty() {
        "no pod".to_owned()
    } else {
        pods.join(", ")
    }
}
