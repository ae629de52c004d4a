//! `sidetrack doctor`: checks whether this node can run sidetrack.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Args;

use super::{Format, Places, output};
use crate::server::control_socket;
use sidetrack_base::runtime::exit_code;
use sidetrack_datapath::kernel::probe;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack doctor
  sidetrack doctor --bpffs /sys/fs/bpf --cgroup /sys/fs/cgroup/kubepods.slice -o json")]
pub(super) struct Options {
    #[command(flatten)]
    places: Places,
    /// The cgroup that holds all pods [default: kubelet's, else the root of the cgroup2 mount]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let places = &options.places;
    let socket = control_socket::check(&places.socket).map_err(|error| format!("{error:#}"));
    let report = probe::node(&places.bpffs, options.cgroup.as_deref(), socket);
    if !output::print_value(options.output, &report)? {
        print(&report, options.output == Format::Wide)?;
    }
    Ok(exit_code(report.ok))
}

fn print(report: &probe::DoctorReport, wide: bool) -> Result<()> {
    output::print(format!("kernel  {}\n", report.kernel))?;
    let more: &[&str] = if wide { &["NEEDED", "OBJECT"] } else { &[] };
    let header = [&["FACILITY", "SINCE", "HERE"], more, &["WITHOUT IT"]].concat();
    let mut table = output::table(header);
    for check in &report.checks {
        let here = match (check.ok, &check.problem) {
            (Some(true), None) => "yes",
            (Some(true), Some(_)) => "not ready",
            (Some(false), _) => "no",
            (None, _) => "?",
        };
        let needed = if check.optional { "no" } else { "yes" };
        let cells = [
            Some(check.facility.as_str()),
            Some(&check.since),
            Some(here),
            wide.then_some(needed),
            wide.then_some(check.object),
            Some(&check.without),
        ];
        table.add_row(cells.into_iter().flatten());
    }
    output::print_table(&table)?;
    for (title, ok) in [
        ("Missing:", false),
        ("To do before the agent starts:", true),
    ] {
        let lines: Vec<String> = report
            .checks
            .iter()
            .filter(|check| check.ok == Some(ok))
            .filter_map(|check| Some(format!("  {}: {}", check.facility, check.problem.as_ref()?)))
            .collect();
        if !lines.is_empty() {
            output::print(format!("\n{title}\n{}", lines.join("\n")))?;
        }
    }
    output::print(if report.ok {
        "\nThis node can run sidetrack."
    } else if report.able {
        "\nThis node can run sidetrack once it is prepared. Until then the agent does not start."
    } else if report.checks.iter().any(|check| check.ok.is_none()) {
        "\nRun as root to learn the rest."
    } else {
        "\nThis node cannot run sidetrack."
    })
}
