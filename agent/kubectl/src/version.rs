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
    let (answers, silent): (Answers<Whole<Build>>, _) = ask::all(cluster, &agents, &words).await?;
    let fine = silent.report();
    let agents = ask::for_programs(&answers, &silent, "build");
    let all = json!({"plugin": {"version": VERSION}, "agents": agents});
    output::show(options.output, &all, || {
        let header = ["NODE", "VERSION", "COMMIT", "TARGET"];
        let nodes = output::table(&header, ask::answered(&answers).map(cells));
        format!("plugin {VERSION}\n\n{nodes}")
    })?;
    Ok(exit_code(fine))
}

fn cells((node, build): (&String, &Build)) -> Vec<String> {
    vec![
        node.clone(),
        build.version.clone(),
        output::or_dash(build.commit.as_ref()),
        build.target.clone(),
    ]
}
