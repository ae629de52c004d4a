//! `kubectl sidetrack doctor`: what the kernel of each node lacks.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Deserialize;
use sidetrack_base::runtime::exit_code;

use crate::{
    ask::{self, Answers, Whole},
    cluster::Cluster,
    flags::Format,
    output,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// What is shown of an answer.
#[derive(Deserialize)]
struct Findings {
    ok: bool,
    /// Whether it can, once what it lacks is prepared.
    #[serde(default)]
    able: bool,
    kernel: String,
    checks: Vec<Check>,
}

#[derive(Deserialize)]
struct Check {
    facility: String,
    ok: Option<bool>,
    problem: Option<String>,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let agents = cluster.some_agents().await?;
    let words = ["doctor", "-o", "json"];
    let (answers, silent): (Answers<Whole<Findings>>, _) =
        ask::all(cluster, &agents, &words).await?;
    let all_answer = silent.report();
    output::show(
        options.output,
        &ask::for_programs(&answers, &silent, "report"),
        || text(&answers, options.output == Format::Wide),
    )?;
    let can_run = ask::answered(&answers).all(|(_, findings)| findings.ok);
    Ok(exit_code(all_answer && can_run))
}

fn text(answers: &Answers<Whole<Findings>>, wide: bool) -> String {
    let lines = ask::answered(answers).map(|(node, findings)| {
        let result = match (findings.ok, findings.able) {
            (true, _) => "yes",
            (false, true) => "once prepared",
            (false, false) => "no",
        };
        let kernel = findings.kernel.clone();
        vec![
            node.clone(),
            kernel,
            result.to_owned(),
            remarks(findings, wide),
        ]
    });
    output::table(&["NODE", "KERNEL", "CAN RUN SIDETRACK", "MISSING"], lines)
}

/// What is missing, not ready or unknown; in wide output with the reasons.
fn remarks(report: &Findings, wide: bool) -> String {
    let checks = report.checks.iter();
    let missing = checks.filter(|check| check.ok != Some(true) || check.problem.is_some());
    let all: Vec<String> = missing
        .map(|check| {
            let state = match check.ok {
                None => " (unknown)",
                Some(true) => " (not ready)",
                Some(false) => "",
            };
            let problem = check.problem.as_ref().filter(|_| wide);
            let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
            format!("{}{state}{problem}", check.facility)
        })
        .collect();
    all.join(if wide { "; " } else { ", " })
}
