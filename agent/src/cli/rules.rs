//! `sidetrack rules`: a pod's policy as the rules istio-iptables would have programmed.

use std::{collections::HashMap, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;
use sidetrack_common::addr::Family;

use super::{
    output,
    target::{Target, Which},
};
use sidetrack_policy::rules::{self, Line};

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    which: Which,
    /// Form of the output
    #[arg(
        short = 'o',
        long,
        visible_alias = "output",
        value_enum,
        default_value_t
    )]
    format: Form,
    /// The IPv6 rules
    #[arg(short = '6', long)]
    ipv6: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people, with the connections each rule has decided
    #[default]
    Table,
    /// Input for iptables-restore (ip6tables-restore with -6)
    Iptables,
    /// For programs
    Json,
}

/// A rule in JSON.
#[derive(Debug, Serialize)]
struct Row {
    chain: &'static str,
    rule: String,
    name: Option<&'static str>,
    connections: Option<u64>,
}

pub(super) async fn run(options: Options) -> Result<ExitCode> {
    let target = Target::find(&options.which).await?;
    let family = if options.ipv6 { Family::V6 } else { Family::V4 };
    if options.format == Form::Iptables {
        output::print(rules::restore(&target.policy, family).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let counts = counts(&target)?;
    let rows: Vec<Row> = rules::nat(&target.policy, family)
        .into_iter()
        .map(|line| row(line, counts.as_ref()))
        .collect();
    match options.format {
        Form::Json => output::print_json(&rows)?,
        _ => print(&target, &rows, family)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Connections by rule number and position; `None` for a pod that is not enrolled here.
fn counts(target: &Target) -> Result<Option<HashMap<(u32, u32), u64>>> {
    let Some(live) = &target.live else {
        return Ok(None);
    };
    let sums = live.maps.counts.sums().context("read the counters")?;
    Ok(Some(
        sums.into_iter()
            .filter(|(key, _)| key.netns == live.netns)
            .map(|(key, count)| ((key.rule, key.index), count))
            .collect(),
    ))
}

fn row(line: Line, counts: Option<&HashMap<(u32, u32), u64>>) -> Row {
    let count = |counts: &HashMap<(u32, u32), u64>| {
        let (rule, index) = line.decision?;
        Some(
            counts
                .get(&(rule as u32, index))
                .copied()
                .unwrap_or_default(),
        )
    };
    Row {
        chain: line.chain,
        rule: line.command(),
        name: line.decision.map(|(rule, _)| rule.name()),
        connections: counts.and_then(count),
    }
}

fn print(target: &Target, rows: &[Row], family: Family) -> Result<()> {
    output::print(format!(
        "pod {}, dialect {}",
        target.name, target.policy.dialect
    ))?;
    if family == Family::V6 && !target.ipv6 {
        output::print("The pod's IPv6 connections are left alone; these rules are not active.")?;
    }
    for note in target.policy.notes() {
        output::print(format!("Note: {note}."))?;
    }
    output::print("")?;
    let mut table = output::table(["CONNECTIONS", "RULE"]);
    for row in rows {
        let count = row
            .connections
            .map_or_else(|| "-".to_owned(), |count| count.to_string());
        table.add_row([count, row.rule.clone()]);
    }
    output::print_table(&table)
}
