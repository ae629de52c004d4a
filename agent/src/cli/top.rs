//! `sidetrack top`: pods and their connections a second, live or once.

mod node;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::{Result, bail};
use clap::Args;
use sidetrack_base::duration::interval;
use sidetrack_live::{
    screen,
    top::{self, Origin, Row, Settings, TopReport, View},
};

use self::node::Node;
use super::{Format, Places, output, pod_name};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack top                            live; ? shows the keys
  sidetrack top -n shop web                only pods of a namespace whose names contain a text
  sidetrack top --once --interval 10s      one table for scripts, of ten seconds
  sidetrack top --once -o json             the same for programs")]
pub(super) struct Options {
    /// Only pods whose NAMESPACE/POD contains this
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    name: String,
    /// Only pods of this Kubernetes namespace
    #[arg(short, long, value_name = "NAMESPACE", value_parser = pod_name::namespace)]
    namespace: Option<String>,
    /// The time between two readings of the counters, such as 2s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Read twice, print a table and end. This needs no terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    places: Places,
    /// Form of the output, with --once
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let node = Node::new(options.places.clone(), options.interval);
    if options.once {
        return once(&node, &options).await;
    }
    if options.output != Format::Table {
        super::usage("the live view has no other form: pass --once with -o");
    }
    screen::require_terminal()?;
    let settings = Settings {
        many_nodes: false,
        namespace: options.namespace.clone(),
        interval: options.interval,
    };
    let view = View::new(settings, &options.name, SystemTime::now());
    top::run(view, &node).await?;
    Ok(ExitCode::SUCCESS)
}

async fn once(node: &Node, options: &Options) -> Result<ExitCode> {
    node.report().await;
    tokio::time::sleep(options.interval).await;
    let mut report = node.report().await;
    let no_answer = report.no_answer.clone().unwrap_or_default();
    if report.origin == Origin::Nowhere {
        bail!("{no_answer}");
    }
    report.pods.retain(|row| is_wanted(row, options));
    if report.origin == Origin::PinnedMaps {
        output::remark(format!(
            "{no_answer}; by the pinned maps these pods are intercepted:"
        ));
    }
    if !output::print_value(options.output, &report)? {
        print(&report, options.output == Format::Wide)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_wanted(row: &Row, options: &Options) -> bool {
    let namespace = options.namespace.as_ref();
    namespace.is_none_or(|namespace| *namespace == row.namespace)
        && row.full_name().contains(&options.name)
}

fn print(report: &TopReport, wide: bool) -> Result<()> {
    let mut table = output::table(top::header(false, wide));
    let mut rows: Vec<&Row> = report.pods.iter().collect();
    rows.sort_by_key(|row| (row.urgency(), row.full_name()));
    for row in rows {
        table.add_row(top::cells(row, None, wide));
    }
    output::print_table(&table)
}
