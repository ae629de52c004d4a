//! `kubectl sidetrack doctor`: what the kernel of each node lacks.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use sidetrack_base::runtime::exit_code;

use crate::{agents, ask, cluster::Cluster, flags::Format, output, pods::no_agent};

#[derive(Debug, Args)]
pub struct Options {
    /// Form of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A node's answer.
struct NodeAnswer {
    report: Findings,
    whole: Value,
}

/// What is shown of it.
#[derive(Deserialize)]
struct Findings {
    ok: bool,
    kernel: String,
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    facility: String,
    ok: Option<bool>,
    problem: Option<String>,
}

impl<'de> Deserialize<'de> for NodeAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Value::deserialize(deserializer)?;
        let report = Findings::deserialize(&whole).map_err(D::Error::custom)?;
        Ok(Self { report, whole })
    }
}

/// A node, for programs.
#[derive(Serialize)]
struct NodeReport<'a> {
    node: &'a str,
    report: Option<&'a Value>,
    problem: Option<&'a str>,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let agents = agents::by_node(&cluster.agents_pods().await?);
    if agents.is_empty() {
        anyhow::bail!("{}", no_agent(cluster));
    }
    let answers: BTreeMap<String, Result<NodeAnswer, String>> =
        ask::all(cluster, &agents, &["doctor", "-o", "json"]).await?;
    let nodes: Vec<NodeReport<'_>> = answers
        .iter()
        .map(|(node, answer)| NodeReport {
            node,
            report: answer.as_ref().ok().map(|answer| &answer.whole),
            problem: answer.as_ref().err().map(String::as_str),
        })
        .collect();
    output::show(options.output, &nodes, || {
        text(&answers, options.output == Format::Wide)
    })?;
    let is_fine =
        |answer: &Result<NodeAnswer, String>| answer.as_ref().is_ok_and(|answer| answer.report.ok);
    Ok(exit_code(answers.values().all(is_fine)))
}

fn text(answers: &BTreeMap<String, Result<NodeAnswer, String>>, wide: bool) -> String {
    let lines = answers.iter().map(|(node, answer)| {
        let (kernel, result, remarks) = match answer {
            Err(problem) => ("-", "unknown", problem.clone()),
            Ok(answer) => {
                let result = if answer.report.ok { "yes" } else { "no" };
                (
                    &*answer.report.kernel,
                    result,
                    remarks(&answer.report, wide),
                )
            }
        };
        vec![node.clone(), kernel.to_owned(), result.to_owned(), remarks]
    });
    output::table(&["NODE", "KERNEL", "CAN RUN SIDETRACK", "MISSING"], lines)
}

/// What is missing or unknown; in wide output with the reasons.
fn remarks(report: &Findings, wide: bool) -> String {
    let missing = report.checks.iter().filter(|check| check.ok != Some(true));
    let all: Vec<String> = missing
        .map(|check| {
            let unknown = if check.ok.is_none() { " (unknown)" } else { "" };
            let problem = check.problem.as_ref().filter(|_| wide);
            let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
            format!("{}{unknown}{problem}", check.facility)
        })
        .collect();
    all.join(if wide { "; " } else { ", " })
}
