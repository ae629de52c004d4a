//! `kubectl sidetrack status`: every node, and what is wrong in the cluster.

mod report;

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use clap::Args;
use kube::api::ListParams;

use self::report::{AgentReport, ClusterReport, NodeRow, Probes};
use crate::{
    ask::{self, Answers},
    cluster::Cluster,
    flags::Format,
    output::{self, SHOWN, first, or_dash},
    pods::{self, Known, Row, Scope},
};

/// The most nodes that all have a line.
const SHOWN_NODES: usize = 20;
/// Exit code where nothing is known to be wrong, and not everything is known.
const NOT_KNOWN: u8 = 3;

#[derive(Debug, Args)]
pub struct Options {
    /// Exit with 1 also if there is a problem, a sidecar is down or hangs, or a node that should have
    /// an agent has none that is ready
    #[arg(long)]
    check: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let (agents, pods, labels, probes) = tokio::try_join!(
        cluster.agents(),
        cluster.pods_in(None, ListParams::default()),
        cluster.namespace_labels(None),
        cluster.interception_probes(),
    )?;
    let (nodes, wanted) = tokio::join!(cluster.linux_nodes(), cluster.wanted_agents());
    // Agents without an answer are not asked for their pods, so that one that hangs costs its deadline once.
    let (answers, _): (Answers<AgentReport>, _) =
        ask::all(cluster, &agents, &["status", "-o", "json"]).await?;
    let answering = agents
        .iter()
        .filter(|(node, _)| answers[*node].is_ok())
        .map(|(node, agent)| (node.clone(), agent.clone()))
        .collect();
    let (mut known, _): (Answers<Vec<Known>>, _) =
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
    let mut report = ClusterReport::of(&agents, answers, (nodes, wanted), &rows);
    let are_listed = listless.is_empty();
    report.unanswered.extend(listless);
    report.add_probes(&probes);
    if agents.is_empty() {
        report.unanswered.insert(0, cluster.no_agent());
    }
    output::show(options.output, &report, || {
        text(&report, &rows, options.output == Format::Wide)
    })?;
    let is_fine = report.problems.is_empty() && report.nodes.iter().all(NodeRow::is_fine);
    let is_counted = report.wanted_agents.is_some() || !options.check;
    Ok(if options.check && !(is_fine && are_listed) {
        ExitCode::FAILURE
    } else if report.unanswered.is_empty() && is_counted {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_KNOWN)
    })
}

fn text(report: &ClusterReport, rows: &[Row], wide: bool) -> String {
    let mut header = vec![
        "NODE", "VERSION", "STATE", "ENROLLED", "OUTDATED", "PARTIAL", "WAITING", "REJECTED",
        "SKIPPED", "DOWN", "HANG",
    ];
    if wide {
        header.extend(["KERNEL", "AGENT"]);
    }
    let is_whole = wide || report.nodes.len() <= SHOWN_NODES;
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut shown = Vec::new();
    for node in &report.nodes {
        let of_state = seen.entry(&node.state).or_default();
        let is_fine = node.state == "ready" && node.is_fine();
        if is_whole || !is_fine && *of_state < SHOWN {
            *of_state += 1;
            shown.push(node);
        }
    }
    let lines = shown.into_iter().map(|node| {
        let mut line = vec![
            node.node.clone(),
            or_dash(node.version.as_ref()),
            node.state.clone(),
        ];
        for state in [
            "enrolled", "outdated", "partial", "waiting", "rejected", "skipped",
        ] {
            let count = node.pods.as_ref().and_then(|pods| pods.get(state));
            line.push(or_dash(count));
        }
        for count in [
            node.sidecars.map(|it| it.down),
            node.sidecars.map(|it| it.hangs),
        ] {
            line.push(or_dash(count));
        }
        if wide {
            line.push(or_dash(node.kernel.as_ref()));
            line.push(or_dash(node.agent.as_ref()));
        }
        line
    });
    let mut text = agents_line(report);
    text += &output::table(&header, lines);
    text.push('\n');
    if !is_whole {
        text += "all nodes: -o wide\n";
    }
    let pods = |is_meant: fn(&Row) -> bool| -> Vec<String> {
        let meant = rows.iter().filter(|row| is_meant(row));
        meant
            .map(|row| format!("{} ({}): {}", row.full_name(), row.state, row.remarks()))
            .collect()
    };
    for (title, lines) in [
        (
            "labeled and not intercepted",
            pods(|row| row.is_missed() && !row.is_skipped()),
        ),
        (
            "labeled and skipped",
            pods(|row| row.is_missed() && row.is_skipped()),
        ),
        (
            "no agent says whether these labeled pods are intercepted; those that were enrolled stay so, unless their agent removed everything as it was uninstalled",
            pods(Row::is_unknown),
        ),
        ("no answer", report.unanswered.clone()),
        ("notes", report.notes.clone()),
        ("problems", problems(&report.problems, rows)),
    ] {
        text += &output::section(title, &first(lines, "-o json"));
    }
    text
}

/// Those that are not said already: agents have the same reasons of the pods that are listed as missed.
fn problems(all: &[String], rows: &[Row]) -> Vec<String> {
    let missed = rows.iter().filter(|row| row.is_missed());
    let missed: Vec<String> = missed
        .map(|row| format!("pod {}: ", row.full_name()))
        .collect();
    let is_said = |line: &&String| missed.iter().any(|pod| line.contains(pod));
    all.iter().filter(|line| !is_said(line)).cloned().collect()
}

/// How many agents are in each state, and how many there should be.
fn agents_line(report: &ClusterReport) -> String {
    let counts = report.counts();
    let counts: Vec<String> = counts
        .iter()
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    let wanted = report.wanted_agents.map_or_else(String::new, |wanted| {
        format!("; {wanted} should have an agent")
    });
    let measured = report.probes.as_ref().map_or_else(String::new, |probes| {
        let Probes { intercept, pods } = probes;
        format!("; {intercept} of {pods} interception probes are ready")
    });
    format!("nodes: {}{wanted}{measured}\n\n", counts.join(", "))
}
