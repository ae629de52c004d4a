//! `kubectl sidetrack cost`: what sidetrack takes of each node.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sidetrack_base::duration::interval;
use sidetrack_base::runtime::exit_code;
use sidetrack_live::bytes;

use crate::{agents, ask, cluster::Cluster, flags::Format, output, pods::no_agent};

#[derive(Debug, Args)]
pub struct Options {
    /// The time over which an agent's share of a processor is taken, such as 2s or 1m
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What is shown of a node's answer.
#[derive(Deserialize)]
struct CostAnswer {
    enrolled: u64,
    maps: Vec<Map>,
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

/// A node, for programs.
#[derive(Serialize)]
struct NodeCost<'a> {
    node: &'a str,
    cost: Option<&'a Value>,
    problem: Option<&'a str>,
}

pub async fn run(mut cluster: Cluster, options: &Options) -> Result<ExitCode> {
    // An answer comes after the second reading.
    cluster.connect.timeout += options.interval;
    let agents = agents::by_node(&cluster.agents_pods().await?);
    if agents.is_empty() {
        bail!("{}", no_agent(&cluster));
    }
    let interval = format!("{}ms", options.interval.as_millis());
    let words = ["cost", "-o", "json", "--interval", &interval];
    let answers: BTreeMap<String, Result<Value, String>> =
        ask::all(&cluster, &agents, &words).await?;
    let nodes: Vec<NodeCost<'_>> = answers
        .iter()
        .map(|(node, answer)| NodeCost {
            node,
            cost: answer.as_ref().ok(),
            problem: answer.as_ref().err().map(String::as_str),
        })
        .collect();
    output::show(options.output, &nodes, || {
        let header = ["NODE", "PODS", "MAPS", "AGENT", "PROCESSOR", "REMARKS"];
        output::table(&header, nodes.iter().map(cells))
    })?;
    Ok(exit_code(nodes.iter().all(|node| node.problem.is_none())))
}

fn cells(node: &NodeCost<'_>) -> Vec<String> {
    let none = || "-".to_owned();
    let cost = node.cost.map(CostAnswer::deserialize);
    let problem = match (&cost, node.problem) {
        (Some(Err(wrong)), _) => format!("its answer is not understood: {wrong}"),
        (_, problem) => problem.unwrap_or_default().to_owned(),
    };
    let cost = cost.and_then(Result::ok);
    let cost = cost.as_ref();
    let agent = cost.and_then(|cost| cost.agent.as_ref());
    let share = cost.and_then(|cost| cost.processors);
    vec![
        node.node.to_owned(),
        cost.map_or_else(none, |cost| cost.enrolled.to_string()),
        cost.map_or_else(none, |cost| {
            bytes(cost.maps.iter().map(|map| map.bytes).sum())
        }),
        agent.map_or_else(none, |agent| bytes(agent.resident_bytes)),
        share.map_or_else(none, |share| format!("{:.1} %", share * 100.0)),
        problem,
    ]
}
