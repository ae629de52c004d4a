//! `kubectl sidetrack status`: every node, and what is wrong in the cluster.

mod report;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use sidetrack_base::runtime::exit_code;

use self::report::{AgentReport, ClusterReport, NodeRow};
use crate::{
    ask::{self, Answers},
    cluster::Cluster,
    flags::{Format, Which},
    output,
    pods::{self, Known, Row, Scope},
};

/// The most pods that are named one by one for people.
const SHOWN: usize = 20;

#[derive(Debug, Args)]
pub struct Options {
    /// Exit with 1 also if there is a problem, a sidecar is down or hangs, or an agent is not ready
    #[arg(long)]
    check: bool,
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let which = Which {
        all_namespaces: true,
        selector: None,
    };
    let (agents, pods, labels) = tokio::try_join!(
        cluster.agents(),
        cluster.pods(&which),
        cluster.namespace_labels(),
    )?;
    let nodes = cluster.linux_nodes().await;
    // Agents without an answer are not asked for their pods, so that one that hangs costs its deadline once.
    let answers: Answers<AgentReport> =
        ask::all(cluster, &agents, &["status", "-o", "json"]).await?;
    let answering = agents
        .iter()
        .filter(|(node, _)| answers[*node].is_ok())
        .map(|(node, agent)| (node.clone(), agent.clone()))
        .collect();
    let mut known: Answers<Vec<Known>> =
        ask::all(cluster, &answering, &["pods", "-o", "json"]).await?;
    let listless: Vec<String> = known
        .iter()
        .filter_map(|(node, answer)| {
            let problem = answer.as_ref().err()?;
            Some(format!("{node}: its pods are unknown: {problem}"))
        })
        .collect();
    for (node, answer) in &answers {
        if let Err(problem) = answer {
            known.insert(node.clone(), Err(problem.clone()));
        }
    }
    let rows = pods::rows(&pods, &labels, &agents, &known, &Scope::All);
    let mut report = ClusterReport::of(&agents, answers, nodes, &rows);
    let is_complete = listless.is_empty();
    report.problems.extend(listless);
    if agents.is_empty() {
        report.problems.insert(0, cluster.no_agent());
    }
    output::show(options.output, &report, || {
        text(&report, &rows, options.output == Format::Wide)
    })?;
    let fine = match options.check {
        true => report.problems.is_empty() && report.nodes.iter().all(NodeRow::is_fine),
        false => !agents.is_empty() && is_complete && report.nodes.iter().all(NodeRow::answers),
    };
    Ok(exit_code(fine))
}

fn text(report: &ClusterReport, rows: &[Row], wide: bool) -> String {
    let mut header = vec![
        "NODE", "VERSION", "STATE", "ENROLLED", "OUTDATED", "PARTIAL", "WAITING", "REJECTED",
        "SKIPPED", "DOWN", "HANG",
    ];
    if wide {
        header.extend(["KERNEL", "AGENT"]);
    }
    let lines = report.nodes.iter().map(|node| {
        let mut line = vec![
            node.node.clone(),
            or_dash(node.version.as_ref()),
            node.state.clone(),
        ];
        for state in [
            "enrolled", "outdated", "partial", "waiting", "rejected", "skipped",
        ] {
            let count = node.pods.as_ref().and_then(|pods| pods.get(state));
            line.push(count.map_or_else(|| "-".to_owned(), u64::to_string));
        }
        for count in [
            node.sidecars.map(|it| it.down),
            node.sidecars.map(|it| it.hangs),
        ] {
            line.push(count.map_or_else(|| "-".to_owned(), |count| count.to_string()));
        }
        if wide {
            line.push(or_dash(node.kernel.as_ref()));
            line.push(or_dash(node.agent.as_ref()));
        }
        line
    });
    let mut text = output::table(&header, lines);
    text.push('\n');
    let mut missed: Vec<String> = rows
        .iter()
        .filter(|row| row.is_missed())
        .map(|row| format!("{} ({}): {}", row.full_name(), row.state, row.remarks()))
        .collect();
    if missed.len() > SHOWN {
        let more = missed.split_off(SHOWN).len();
        missed.push(format!("and {more} more: kubectl sidetrack pods -A"));
    }
    text += &output::section("labeled and not intercepted", &missed);
    text += &output::section("notes", &report.notes);
    text += &output::section("problems", &report.problems);
    text
}

fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".to_owned())
}
