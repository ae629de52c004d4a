//! `kubectl sidetrack top`: the pods of all nodes, live or once.
//!
//! The counters are read on their node, by `sidetrack top --once`, so that rates do not depend on the way of an
//! answer through the API server.

mod source;

use std::{
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;
use sidetrack_base::duration::interval;
use sidetrack_base::runtime::exit_code;
use sidetrack_live::{
    screen,
    top::{self, Settings, TopReport, View},
};
use sidetrack_policy::text::counted;

use self::source::Nodes;
use crate::{
    ask::{self, Answers},
    cluster::{Cluster, ON_OTHER_NODES, Places, PodOrigin},
    flags::{Format, Which},
    output,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Only pods whose NAMESPACE/POD contains this
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    name: String,
    #[command(flatten)]
    which: Which,
    /// The time between two readings of the counters, such as 2s or 500ms
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Read twice, print a table and end. This needs no terminal
    #[arg(long)]
    once: bool,
    /// Form of the output, with --once
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// The nodes' answers, for programs.
#[derive(Serialize)]
struct ClusterTop {
    nodes: Vec<TopReport>,
}

/// Which pods of a node's answer are shown.
#[derive(Clone, Debug, Default)]
struct Wanted {
    namespace: Option<String>,
    places: Places,
}

impl Wanted {
    async fn of(cluster: &Cluster, which: &Which) -> Result<Self> {
        Ok(Self {
            namespace: (!which.all_namespaces).then(|| cluster.namespace.clone()),
            places: cluster.places(which).await?,
        })
    }

    /// Removes the other pods, and how many of them the API server lists on other nodes. What is wrong with the node
    /// stays.
    fn filter(&self, report: &mut TopReport) -> usize {
        let mut elsewhere = 0;
        let node = &report.node;
        report.pods.retain(|row| {
            let namespace = self.namespace.as_ref();
            let origin = self.places.origin(node, &row.full_name());
            elsewhere += usize::from(origin == PodOrigin::OtherNode);
            origin == PodOrigin::Accepted
                && namespace.is_none_or(|namespace| *namespace == row.namespace)
        });
        elsewhere
    }
}

pub async fn run(mut cluster: Cluster, options: &Options) -> Result<ExitCode> {
    cluster.check_namespace(&options.which).await?;
    // An answer comes after the second reading.
    cluster.connect.timeout += options.interval;
    if options.once {
        return once(&cluster, options).await;
    }
    if options.output != Format::Table {
        bail!("the live view has no other form: pass --once with -o");
    }
    screen::require_terminal()?;
    let settings = Settings {
        many_nodes: true,
        namespace: None,
        interval: options.interval,
    };
    let view = View::new(settings, &options.name, SystemTime::now());
    let nodes = Nodes::find(cluster, options).await?;
    top::run(view, &nodes).await?;
    Ok(ExitCode::SUCCESS)
}

/// The command that a node's agent runs.
fn words(interval: Duration) -> [String; 6] {
    let interval = format!("{}ms", interval.as_millis());
    ["top", "--once", "-o", "json", "--interval", &interval].map(str::to_owned)
}

async fn once(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let agents = cluster.some_agents().await?;
    let wanted = Wanted::of(cluster, &options.which).await?;
    let words = words(options.interval);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (answers, silent): (Answers<TopReport>, _) = ask::all(cluster, &agents, &words).await?;
    let fine = silent.report();
    let reports = answers.into_iter().map(|(node, answer)| {
        let mut report = answer.unwrap_or_else(|why| TopReport::silent(&node, why));
        // By its name in the cluster.
        report.node = node;
        let elsewhere = wanted.filter(&mut report);
        if elsewhere > 0 {
            let pods = counted(elsewhere as u64, "pod");
            output::remark(format!(
                "node {}: {pods} of its answer {ON_OTHER_NODES}",
                report.node
            ));
        }
        report
            .pods
            .retain(|row| row.full_name().contains(&options.name));
        report
    });
    let answers = ClusterTop {
        nodes: reports.collect(),
    };
    output::show(options.output, &answers, || {
        table(&answers, options.output == Format::Wide)
    })?;
    Ok(exit_code(fine))
}

fn table(answers: &ClusterTop, wide: bool) -> String {
    let mut rows: Vec<_> = answers
        .nodes
        .iter()
        .flat_map(|node| node.pods.iter().map(move |row| (row, node.node.as_str())))
        .collect();
    rows.sort_by_key(|(row, node)| (row.urgency(), row.full_name(), *node));
    let cells = rows
        .iter()
        .map(|(row, node)| top::cells(row, Some(node), wide));
    output::table(&top::header(true, wide), cells)
}
