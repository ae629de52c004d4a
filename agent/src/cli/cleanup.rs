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
#[command(after_help = "Examples:
  sidetrack cleanup --dry-run
  sidetrack cleanup")]
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
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// What is shown.
#[derive(Debug, Serialize)]
struct CleanupReport {
    /// Pods that were intercepted until then; unknown if another build wrote their rows.
    pods: Option<Vec<String>>,
    /// Why nothing would be removed now.
    #[serde(skip_serializing_if = "Option::is_none")]
    would_fail: Option<String>,
    #[serde(flatten)]
    removed: Removed,
}

pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let places = &options.places;
    // Without rows that can be read there may still be something to remove.
    let pods = pods::pinned(places);
    let pods = pods.map(|pods| pods.iter().map(PodStatus::full_name).collect());
    let (bpffs, socket, cni) = (&places.bpffs, &places.socket, Some(&*options.cni_conf_dir));
    let (removed, error) = if options.dry_run {
        cleanup::preview(bpffs, socket, cni)?
    } else {
        cleanup::everything(bpffs, socket, cni)?
    };
    let error = match error {
        Some(error) if removed.is_nothing() => return Err(error),
        error => error.map(|error| format!("{error:#}")),
    };
    let report = CleanupReport {
        pods: if removed.maps.is_empty() {
            Some(Vec::new())
        } else {
            pods.ok()
        },
        would_fail: error.clone().filter(|_| options.dry_run),
        removed,
    };
    if !output::print_value(options.output, &report)? {
        print(&report, options.dry_run)?;
    }
    if let Some(error) = error {
        let now = if options.dry_run {
            "cleanup would fail now: "
        } else {
            ""
        };
        output::remark(format!("{now}{error}"));
        return Ok(ExitCode::FAILURE);
    }
    if let Some(problem) = &report.removed.problem {
        output::remark(format!(
            "the CNI plugin's entry may still be there, and then no pod starts on this node: {problem}"
        ));
        return Ok(ExitCode::FAILURE);
    }
    if options.stay {
        block_on(until_signal())??;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &CleanupReport, dry_run: bool) -> Result<()> {
    let done = if dry_run { "would remove" } else { "removed" };
    let removed = &report.removed;
    for path in &removed.left {
        output::print(format!(
            "kept {}: sidetrack did not create it, or another agent uses it",
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
    let (would, go) = if dry_run {
        ("would be ", "would go")
    } else {
        ("", "go")
    };
    let effect = match report.pods.as_deref() {
        Some([]) => "no pod was intercepted".to_owned(),
        pods => format!(
            "open connections continue; new ones {go} direct, past the sidecars and without mTLS, in {}",
            names(pods)
        ),
    };
    output::print(format!(
        "{links} links and {maps} maps {would}removed; {effect}"
    ))
}

/// Names in a row.
fn names(pods: Option<&[String]>) -> String {
    match pods {
        None => "pods that cannot be named, as another version wrote their rows".to_owned(),
        Some([one]) => format!("pod {one}"),
        Some(pods) => format!("{} pods: {}", pods.len(), pods.join(", ")),
    }
}
