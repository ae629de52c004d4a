//! `kubectl sidetrack cost`: what sidetrack takes of each node.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;
use serde::Deserialize;
use sidetrack_base::duration::interval;
use sidetrack_base::runtime::exit_code;
use sidetrack_live::bytes;

use crate::{
    ask::{self, Answers, Whole},
    cluster::Cluster,
    flags::Format,
    output,
};

/// The agents' own default.
const AGENTS_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct Options {
    /// The time over which an agent's processor use is measured, such as 2s or 1m
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// What is shown of a node's answer.
#[derive(Deserialize)]
struct CostAnswer {
    enrolled: u64,
    maps: Vec<Map>,
    /// Whether the kernel says what maps take. Otherwise it is what they would take if they were full.
    #[serde(default)]
    maps_exact: bool,
    agent: Option<Process>,
    processors: Option<f64>,
}

#[derive(Deserialize)]
struct Map {
    bytes: u64,
}

#[derive(Deserialize)]
struct Process {
    resident_bytes: u64,
}

pub async fn run(mut cluster: Cluster, options: &Options) -> Result<ExitCode> {
    // An answer comes after the second reading.
    cluster.connect.timeout += options.interval;
    let agents = cluster.some_agents().await?;
    let interval = format!("{}ms", options.interval.as_millis());
    let mut words = vec!["cost", "-o", "json"];
    // Readers have to take the agents' own.
    if options.interval != AGENTS_INTERVAL {
        words.extend(["--interval", &interval]);
    }
    let (answers, silent): (Answers<Whole<CostAnswer>>, _) =
        ask::all(&cluster, &agents, &words).await?;
    let fine = silent.report();
    output::show(
        options.output,
        &ask::for_programs(&answers, &silent, "cost"),
        || {
            let header = ["NODE", "PODS", "MAPS", "AGENT", "PROCESSOR"];
            output::table(&header, ask::answered(&answers).map(cells))
        },
    )?;
    Ok(exit_code(fine))
}

fn cells((node, cost): (&String, &CostAnswer)) -> Vec<String> {
    let agent = cost.agent.as_ref();
    let most = if cost.maps_exact { "" } else { "<= " };
    vec![
        node.clone(),
        cost.enrolled.to_string(),
        format!(
            "{most}{}",
            bytes(cost.maps.iter().map(|map| map.bytes).sum())
        ),
        output::or_dash(agent.map(|agent| bytes(agent.resident_bytes))),
        output::or_dash(cost.processors.map(|it| format!("{:.1} %", it * 100.0))),
    ]
}
