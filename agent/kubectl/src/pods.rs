//! `kubectl sidetrack pods`: what the agents have of pods, beside what the API server lists.

mod compare;
mod known;

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use sidetrack_base::runtime::exit_code;
use sidetrack_policy::select::Enroll;

pub use self::{
    compare::{Row, Scope, rows},
    known::Known,
};
use crate::{
    agents::Agent,
    ask::{self, Answers},
    cluster::Cluster,
    flags::{Format, Which},
    output::{self, or_dash},
    watch::{List, Listed, watch},
};

#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    /// Continue with pods that are new or have changed, but for their counts, looked for every two seconds
    #[arg(short, long)]
    watch: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// Everything the command shows.
#[derive(Debug, Serialize)]
struct PodsReport {
    pods: Vec<Value>,
    unanswered: Vec<Unanswered>,
}

/// An agent without an answer.
#[derive(Debug, Serialize)]
struct Unanswered {
    node: String,
    agent: String,
    problem: String,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let wide = options.output == Format::Wide;
    if options.watch {
        return watch(options.output, async || {
            let (rows, _, is_whole) = read(cluster, options).await?;
            Ok(List {
                header: header(wide),
                rows: rows.iter().map(|row| row.listed(wide)).collect(),
                is_whole,
            })
        })
        .await;
    }
    let (rows, unanswered, fine) = read(cluster, options).await?;
    let report = PodsReport {
        pods: rows.iter().map(Row::json).collect(),
        unanswered,
    };
    output::show(options.output, &report, || {
        output::table(&header(wide), rows.iter().map(|row| row.cells(wide)))
    })?;
    if rows.is_empty() && fine {
        let all = options.which.all_namespaces;
        output::nothing(
            "pods that sidetrack has",
            (!all).then_some(&cluster.namespace),
        );
    }
    Ok(exit_code(fine))
}

/// The pods that were asked for, the agents without an answer, and whether there are none of those.
async fn read(cluster: &Cluster, options: &Options) -> Result<(Vec<Row>, Vec<Unanswered>, bool)> {
    let only = (!options.which.all_namespaces).then_some(&*cluster.namespace);
    let ((), pods, agents, labels) = tokio::try_join!(
        cluster.check_namespace(&options.which),
        cluster.pods(&options.which),
        cluster.agents(),
        cluster.namespace_labels(only),
    )?;
    let words = ask::of_namespace(&["pods", "-o", "json"], only);
    let (known, silent): (Answers<Vec<Known>>, _) = ask::all(cluster, &agents, &words).await?;
    let unanswered = silent.why.iter().map(|(node, problem)| Unanswered {
        node: node.clone(),
        agent: agents[node].pod.clone(),
        problem: problem.clone(),
    });
    let unanswered = unanswered.collect();
    let scope = match (&options.which.selector, options.which.all_namespaces) {
        (Some(_), _) => Scope::Listed,
        (None, true) => Scope::All,
        (None, false) => Scope::Namespace(&cluster.namespace),
    };
    let rows = rows(&pods, &labels, &agents, &known, &scope);
    if agents.is_empty() {
        output::remark(cluster.no_agent());
    }
    let fine = silent.report() && !agents.is_empty();
    Ok((rows, unanswered, fine))
}

/// Which pods the agents enroll. They are of one DaemonSet; where a node has none, another one's flag holds.
pub fn enroll_of(agents: &BTreeMap<String, Agent>, node: Option<&str>) -> Enroll {
    let own = node.and_then(|node| agents.get(node));
    own.or_else(|| agents.values().next())
        .map_or(Enroll::Labeled, |agent| agent.enroll)
}

fn header(wide: bool) -> Vec<&'static str> {
    let mut header = vec!["POD", "NODE", "STATE", "LISTENER", "OUT", "IN", "REFUSED"];
    if wide {
        header.extend(["NETNS", "POLICY", "FAMILIES", "UNTOUCHED"]);
    }
    header.push("REMARKS");
    header
}

impl Row {
    fn cells(&self, wide: bool) -> Vec<String> {
        let known = self.known.as_ref();
        let cell = |cell: fn(&Known) -> String| or_dash(known.map(cell));
        let mut cells = vec![
            self.full_name(),
            or_dash(self.node.as_ref()),
            self.state.clone(),
            cell(Known::listener),
            cell(|known| known.count(|of| of.outbound_redirected)),
            cell(|known| known.count(|of| of.inbound_redirected)),
            cell(|known| known.count(|of| of.refused)),
        ];
        if wide {
            cells.extend([
                cell(Known::netns),
                cell(Known::policy),
                cell(Known::families),
                cell(|known| known.count(|of| of.untouched)),
            ]);
        }
        cells.push(self.remarks());
        cells
    }

    fn listed(&self, wide: bool) -> Listed {
        let cells = self.cells(wide);
        let is_count = |column: &str| ["OUT", "IN", "REFUSED", "UNTOUCHED"].contains(&column);
        let named = header(wide).into_iter().zip(&cells);
        let kept = named.filter(|(column, _)| !is_count(column));
        Listed {
            id: self.full_name(),
            key: kept
                .map(|(_, cell)| cell.as_str())
                .collect::<Vec<_>>()
                .join("\n"),
            value: self.json(),
            cells,
        }
    }
}
