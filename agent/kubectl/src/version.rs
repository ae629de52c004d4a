//! `kubectl sidetrack version`: what the plugin and the binary of each node were built from.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use sidetrack_base::{VERSION, runtime::exit_code};

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
struct Build {
    version: String,
    commit: Option<String>,
    target: String,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let agents = cluster.some_agents().await?;
    let words = ["version", "-o", "json"];
    let answers: Answers<Whole<Build>> = ask::all(cluster, &agents, &words).await?;
    let agents = ask::for_programs(&answers, "build");
    let all = json!({"plugin": {"version": VERSION}, "agents": agents});
    output::show(options.output, &all, || {
        let header = ["NODE", "VERSION", "COMMIT", "TARGET", "REMARKS"];
        let nodes = output::table(&header, answers.iter().map(cells));
        format!("plugin {VERSION}\n\n{nodes}")
    })?;
    Ok(exit_code(answers.values().all(Result::is_ok)))
}

fn cells((node, answer): (&String, &Result<Whole<Build>, String>)) -> Vec<String> {
    let build = answer.as_ref().ok().map(|answer| &answer.shown);
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        node.clone(),
        cell(build.map(|build| build.version.clone())),
        cell(build.and_then(|build| build.commit.clone())),
        cell(build.map(|build| build.target.clone())),
        answer.as_ref().err().cloned().unwrap_or_default(),
    ]
}
