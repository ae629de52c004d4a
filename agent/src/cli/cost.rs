//! `sidetrack cost`: sidetrack's memory and CPU use on this node.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use sidetrack_base::duration::interval;
use sidetrack_datapath::kernel::{memory, pins::Pins};
use sidetrack_live::bytes;
use sidetrack_policy::text::counted;

use super::{Format, Places, output, pods};
use crate::{
    api::{Cost, ProcessCost},
    client::Client,
    observe::cost::cost,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sidetrack cost                    memory of the agent and of each map, and processor time
  sidetrack cost --interval 1m      the agent's processor use over a minute
  sidetrack cost -o json            the same for programs")]
pub(super) struct Options {
    /// The time over which the agent's processor use is measured, such as 2s or 1m
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    places: Places,
    /// Form of the output. The wide one has every map
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// Everything the command shows.
#[derive(Debug, Serialize)]
struct CostReport {
    #[serde(flatten)]
    cost: Cost,
    /// Processors that the agent has used in the interval, 1 for a whole one.
    processors: Option<f64>,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let report = report(&options).await?;
    if !output::print_value(options.output, &report)? {
        print(&report, options.output == Format::Wide)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Without an agent the maps are there all the same.
async fn report(options: &Options) -> Result<CostReport> {
    let client = Client::new(&options.places.socket);
    let before: Result<Cost> = client.get("/v1/cost").await;
    let before = match before {
        Ok(before) => before,
        Err(no_agent) => {
            let pinned = pinned(&options.places)
                .with_context(|| format!("{no_agent:#}; the pinned maps cannot be read"))?;
            output::remark(format!("{no_agent:#}; these maps are pinned:"));
            return Ok(CostReport {
                cost: pinned,
                processors: None,
            });
        }
    };
    tokio::time::sleep(options.interval).await;
    let cost: Cost = client.get("/v1/cost").await?;
    let processors = before
        .agent
        .zip(cost.agent)
        .and_then(|(before, now)| processors(&before, &now));
    Ok(CostReport { cost, processors })
}

fn pinned(places: &Places) -> Result<Cost> {
    let pins = Pins::new(&places.bpffs)?;
    let enrolled = pods::pinned(places)?.len() as u64;
    let memory = memory::of_maps(&pins).context("read what the maps take")?;
    Ok(cost(enrolled, &memory, &[], None))
}

/// Processors used between two readings of one process.
fn processors(before: &ProcessCost, now: &ProcessCost) -> Option<f64> {
    let seconds = now.uptime_seconds - before.uptime_seconds;
    (seconds > 0.0).then(|| (now.cpu_seconds - before.cpu_seconds) / seconds)
}

fn print(report: &CostReport, wide: bool) -> Result<()> {
    let CostReport { cost, processors } = report;
    for line in summary(cost, *processors) {
        output::print(line)?;
    }
    let mut maps: Vec<_> = cost.maps.iter().collect();
    maps.sort_by_key(|map| std::cmp::Reverse(map.bytes));
    let shown = if wide { maps.len() } else { SHOWN };
    let mut table = output::table(["MAP", "MEMORY", "OF ITS ROWS", "ROWS", "CAPACITY"]);
    for map in maps.iter().take(shown) {
        table.add_row([
            map.map.clone(),
            bytes(map.bytes),
            bytes(map.row_bytes),
            output::or_dash(map.rows),
            output::or_dash(map.capacity),
        ]);
    }
    output::print("")?;
    output::print_table(&table)?;
    if let Some(rest) = maps.get(shown..).filter(|rest| !rest.is_empty()) {
        let sum = rest.iter().map(|map| map.bytes).sum();
        let maps = counted(rest.len() as u64, "other map");
        output::print(format!("and {maps}, {} together: -o wide", bytes(sum)))?;
    }
    Ok(())
}

/// Maps that are shown one by one, unless all are wanted.
const SHOWN: usize = 8;

/// All in all, and for each pod.
fn summary(cost: &Cost, processors: Option<f64>) -> Vec<String> {
    let mut lines = Vec::new();
    let pods = counted(cost.enrolled, "enrolled pod");
    let maps = bytes(cost.map_bytes());
    lines.push(match (cost.maps_exact, cost.row_bytes().checked_div(cost.enrolled)) {
        (false, _) => format!(
            "maps       {maps} at most, if all were full; this kernel does not say what they take (Linux 6.4 does). {pods}"
        ),
        (true, None) => format!("maps       {maps}, {pods}"),
        (true, Some(each)) => format!(
            "maps       {maps}, of which {} are rows of {pods}: {} each",
            bytes(cost.row_bytes()),
            bytes(each)
        ),
    });
    let Some(agent) = &cost.agent else {
        lines.push("agent      none".to_owned());
        return lines;
    };
    lines.push(format!(
        "agent      {} resident, at most {} so far",
        bytes(agent.resident_bytes),
        bytes(agent.peak_resident_bytes)
    ));
    let percent = |processors: f64| format!("{:.1} %", processors * 100.0);
    let since_start = agent.cpu_seconds / agent.uptime_seconds.max(0.001);
    let now = processors.map_or_else(String::new, |now| format!("{} of one now, ", percent(now)));
    lines.push(format!(
        "processor  {now}{} since its start {} ago. What the kernel programs take counts as the pods' own",
        percent(since_start),
        output::seconds(agent.uptime_seconds as u64)
    ));
    lines.push(format!(
        "in all     {} of memory",
        bytes(cost.map_bytes() + agent.resident_bytes)
    ));
    lines
}

#[cfg(test)]
mod tests;
