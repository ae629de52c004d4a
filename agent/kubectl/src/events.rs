//! `kubectl sidetrack events`: what happened lately on all nodes, in one list.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use sidetrack_base::runtime::exit_code;
use sidetrack_live::history::{Entry, Flags, HEADER};

use crate::{
    ask::{self, Answers},
    cluster::Cluster,
    flags::Format,
    output,
    watch::{List, Listed, watch},
};

#[derive(Debug, Args)]
pub struct Options {
    /// Only events of this pod, which need not be there any more
    #[arg(value_name = "[NAMESPACE/]POD", conflicts_with = "all_namespaces")]
    pod: Option<String>,
    /// Events of pods of all namespaces, and of the nodes
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    #[command(flatten)]
    flags: Flags,
    /// Continue with those that follow, looked for every two seconds
    #[arg(short, long)]
    watch: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// An event and its node.
#[derive(Debug, Serialize)]
struct Event {
    node: String,
    #[serde(flatten)]
    entry: Entry,
}

impl Options {
    /// The namespace of the pods that are meant, unless those of all are.
    fn namespace<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a str> {
        match self.pod.as_ref().and_then(|pod| pod.split_once('/')) {
            Some((namespace, _)) => Some(namespace),
            None => (!self.all_namespaces).then_some(&*cluster.namespace),
        }
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    if options.watch {
        return watch(options.output, async || {
            let (events, is_whole) = read(cluster, options).await?;
            let rows = events.iter().map(Event::listed).collect::<Result<_>>()?;
            Ok(List {
                header: header(),
                rows,
                is_whole,
            })
        })
        .await;
    }
    let (events, fine) = read(cluster, options).await?;
    output::show(options.output, &events, || {
        output::table(&header(), events.iter().map(Event::cells))
    })?;
    if events.is_empty() && fine {
        output::nothing("such events", options.namespace(cluster));
    }
    Ok(exit_code(fine))
}

/// The events that were asked for, and whether every agent has answered.
async fn read(cluster: &Cluster, options: &Options) -> Result<(Vec<Event>, bool)> {
    let agents = cluster.agents().await?;
    let flags = options.flags.words();
    let only = options.namespace(cluster);
    let words = ask::of_namespace(&["events", "-o", "json"], only).into_iter();
    let words: Vec<&str> = words.chain(flags.iter().map(String::as_str)).collect();
    let (answers, silent): (Answers<Vec<Entry>>, _) = ask::all(cluster, &agents, &words).await?;
    let fine = silent.report() && !agents.is_empty();
    if agents.is_empty() {
        output::remark(cluster.no_agent());
    }
    let mut events = Vec::new();
    for (node, answer) in answers {
        let wanted = answer.into_iter().flatten();
        let wanted = wanted.filter(|it| is_wanted(it, cluster, options));
        events.extend(wanted.map(|entry| Event {
            node: node.clone(),
            entry,
        }));
    }
    events.sort_by(|one, other| one.entry.time.cmp(&other.entry.time));
    Ok((events, fine))
}

fn is_wanted(entry: &Entry, cluster: &Cluster, options: &Options) -> bool {
    match &options.pod {
        Some(pod) if pod.contains('/') => entry.is_about(pod),
        Some(pod) => entry.is_about(&format!("{}/{pod}", cluster.namespace)),
        None => options.all_namespaces || entry.is_in(&cluster.namespace),
    }
}

fn header() -> Vec<&'static str> {
    let [time, others @ ..] = HEADER;
    [&[time, "NODE"][..], &others].concat()
}

impl Event {
    fn cells(&self) -> Vec<String> {
        let [time, others @ ..] = self.entry.cells();
        let mut cells = vec![time, self.node.clone()];
        cells.extend(others);
        cells
    }

    fn listed(&self) -> Result<Listed> {
        let value = serde_json::to_value(self)?;
        Ok(Listed {
            cells: self.cells(),
            id: value.to_string(),
            key: String::new(),
            value,
        })
    }
}
