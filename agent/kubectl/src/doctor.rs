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
    let answers: Answers<Whole<Findings>> =
        ask::all(cluster, &agents, &["doctor", "-o", "json"]).await?;
    output::show(
        options.output,
        &ask::for_programs(&answers, "report"),
        || text(&answers, options.output == Format::Wide),
    )?;
    let mut all = answers.values();
    Ok(exit_code(all.all(|answer| {
        answer.as_ref().is_ok_and(|answer| answer.shown.ok)
    })))
}

fn text(answers: &Answers<Whole<Findings>>, wide: bool) -> String {
    let lines = answers.iter().map(|(node, answer)| {
        let (kernel, result, remarks) = match answer {
            Err(problem) => ("-", "unknown", problem.clone()),
            Ok(Whole { shown, .. }) => {
                let result = if shown.ok { "yes" } else { "no" };
                (&*shown.kernel, result, remarks(shown, wide))
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
