//! `kubectl sidetrack connections` without a pod: who talks to whom, by the open connections of all nodes.
//!
//! A node is believed about its own pods only. The names of destinations are the API server's.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    process::ExitCode,
};

use anyhow::Result;
use clap::Args;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use sidetrack_base::runtime::exit_code;
use sidetrack_live::bytes;
use sidetrack_policy::{
    facts::PodFacts,
    select::is_completed,
    text::{counted, escaped},
};

use crate::{
    ask::{self, Answers},
    cluster::Cluster,
    flags::{Format, Which, output_word},
    output,
};

/// Connections of a node that are counted: as many as an answer has room for.
const MAX_ROWS: &str = "5000";

#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    /// Print a graph in the language of Graphviz
    #[arg(long, conflicts_with = "output")]
    dot: bool,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

impl Options {
    /// The same for `sidetrack connections` of one pod, as words.
    pub fn words(&self) -> Result<Vec<String>, String> {
        if self.which.all_namespaces || self.which.selector.is_some() || self.dot {
            return Err("-A, -l and --dot are for connections without a pod".to_owned());
        }
        Ok(output_word(self.output).into_iter().collect())
    }
}

/// A node's answer.
#[derive(Debug, Deserialize)]
struct Listing {
    connections: Vec<Row>,
    omitted: Option<u64>,
    unread: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Row {
    pod: String,
    direction: String,
    end: String,
    owner: String,
    via: String,
    original_destination: Option<SocketAddr>,
    sent_bytes: Option<u64>,
    received_bytes: Option<u64>,
}

impl Row {
    /// Whether it is the end of an application that has connected; `None` if that is not certain.
    fn is_client(&self) -> Option<bool> {
        match (self.direction.as_str(), self.end.as_str()) {
            _ if self.owner == "sidecar" => Some(false),
            ("outbound", "connecting") => Some(self.original_destination.is_some()),
            ("unknown", _) | (_, "unknown") => None,
            _ => Some(false),
        }
    }
}

/// From whom to whom, and how.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Talk {
    pod: String,
    /// `service NAMESPACE/NAME`, `pod NAMESPACE/NAME`, or an address.
    destination: String,
    port: u16,
    via: String,
}

#[derive(Debug, Default, Serialize)]
struct Amount {
    connections: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Counted {
    #[serde(flatten)]
    talk: Talk,
    #[serde(flatten)]
    amount: Amount,
}

/// Everything, for programs.
#[derive(Debug, Serialize)]
struct Talks {
    talks: Vec<Counted>,
    /// Connections of which it is not certain which end has made them.
    unknown: u64,
    /// Nodes that have more connections than were read.
    incomplete: Vec<String>,
    /// What could not be read.
    problems: Vec<String>,
}

/// Names by address.
struct Names(HashMap<IpAddr, String>);

impl Names {
    fn of(pods: &[PodFacts], services: &[Service]) -> Self {
        let mut names = HashMap::new();
        for pod in pods {
            // Such a pod's address is its node's.
            if pod.spec.host_network == Some(true) || is_completed(pod) {
                continue;
            }
            let name = format!("pod {}", pod.meta.full_name());
            names.extend(pod.status.pod_ips.iter().map(|ip| (ip, name.clone())));
        }
        for service in services {
            let namespace = service.namespace().unwrap_or_default();
            let name = format!("service {namespace}/{}", service.name_any());
            let spec = service.spec.as_ref();
            let addresses = spec.and_then(|spec| spec.cluster_ips.as_ref());
            let addresses = addresses.into_iter().flatten();
            let addresses = addresses.filter_map(|ip| ip.parse::<IpAddr>().ok());
            names.extend(addresses.map(|ip| (ip, name.clone())));
        }
        Self(names)
    }

    fn name(&self, address: IpAddr) -> String {
        let address = address.to_canonical();
        let known = self.0.get(&address);
        known.cloned().unwrap_or_else(|| address.to_string())
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let which = &options.which;
    cluster.check_namespace(which).await?;
    let everything = cluster.pods_in(None, Default::default()).await?;
    let chosen = match which.selector {
        Some(_) => &cluster.pods(which).await?,
        None => &everything,
    };
    let is_chosen = |name: &str| {
        let namespace = name.split('/').next();
        which.all_namespaces || namespace == Some(&*cluster.namespace)
    };
    let node_of: HashMap<String, &str> = chosen
        .iter()
        .filter_map(|pod| Some((pod.meta.full_name(), pod.spec.node_name.as_deref()?)))
        .filter(|(name, _)| is_chosen(name))
        .collect();
    let mut agents = cluster.some_agents().await?;
    let nodes: BTreeSet<&str> = node_of.values().copied().collect();
    agents.retain(|node, _| nodes.contains(node.as_str()));
    let names = Names::of(&everything, &cluster.all().await?);
    let only = (!which.all_namespaces).then_some(&*cluster.namespace);
    let words = ["connections", "-o", "json", "--limit", MAX_ROWS];
    let words = ask::of_namespace(&words, only);
    let (answers, silent): (Answers<Listing>, _) = ask::all(cluster, &agents, &words).await?;
    let without_agent = nodes.iter().filter(|node| !agents.contains_key(**node));
    let mut talks = talks(answers, silent.lines(), &node_of, &names);
    let lacks = without_agent.map(|node| format!("node {node} has no agent"));
    talks.problems.extend(lacks);
    match options.dot {
        true => output::print(&dot(&talks.talks))?,
        false => output::show(options.output, &talks, || table(&talks, only))?,
    }
    let fine = talks.problems.is_empty();
    let title = counted(talks.problems.len() as u64, "problem");
    output::warn(&title, talks.problems, "-o json");
    let title = format!(
        "{} with more than {MAX_ROWS} connections, of which the others are not counted",
        counted(talks.incomplete.len() as u64, "node")
    );
    output::warn(&title, talks.incomplete, "-o json");
    if talks.unknown > 0 {
        output::remark(format!(
            "of {} it is not certain which end has made them: they go past the sidecar, or are older than the enrollment",
            counted(talks.unknown, "more connection")
        ));
    }
    Ok(exit_code(fine))
}

/// What the answers say together. `problems` are those known so far.
fn talks(
    answers: Answers<Listing>,
    mut problems: Vec<String>,
    node_of: &HashMap<String, &str>,
    names: &Names,
) -> Talks {
    let mut amounts: BTreeMap<Talk, Amount> = BTreeMap::new();
    let mut incomplete = Vec::new();
    let mut unknown = 0;
    for (node, answer) in answers {
        let Ok(listing) = answer else {
            continue;
        };
        if listing.omitted != Some(0) {
            incomplete.push(node.clone());
        }
        problems.extend(listing.unread.iter().map(|it| format!("node {node}: {it}")));
        let is_here = |row: &Row| node_of.get(&row.pod).is_some_and(|known| *known == node);
        for row in listing.connections.into_iter().filter(is_here) {
            let is_client = row.is_client();
            unknown += u64::from(is_client.is_none());
            let destination = row.original_destination;
            let Some(destination) = destination.filter(|_| is_client == Some(true)) else {
                continue;
            };
            let talk = Talk {
                pod: row.pod,
                destination: names.name(destination.ip()),
                port: destination.port(),
                via: row.via,
            };
            let amount = amounts.entry(talk).or_default();
            amount.connections += 1;
            let add =
                |sum: &mut u64, more: Option<u64>| *sum = sum.saturating_add(more.unwrap_or(0));
            add(&mut amount.sent_bytes, row.sent_bytes);
            add(&mut amount.received_bytes, row.received_bytes);
        }
    }
    let talks = amounts
        .into_iter()
        .map(|(talk, amount)| Counted { talk, amount });
    Talks {
        talks: talks.collect(),
        unknown,
        incomplete,
        problems,
    }
}

/// `namespace` is that of all pods, if they are of one.
fn table(found: &Talks, namespace: Option<&str>) -> String {
    let talks = &found.talks;
    if talks.is_empty() && found.problems.is_empty() {
        let whose = namespace.map_or_else(String::new, |it| format!(" of namespace {it}"));
        return format!("no open TCP connections of applications in enrolled pods{whose}");
    }
    let header = [
        "POD",
        "DESTINATION",
        "PORT",
        "VIA",
        "CONNECTIONS",
        "SENT",
        "RECEIVED",
    ];
    output::table(
        &header,
        talks.iter().map(|Counted { talk, amount }| {
            vec![
                talk.pod.clone(),
                talk.destination.clone(),
                talk.port.to_string(),
                talk.via.clone(),
                amount.connections.to_string(),
                bytes(amount.sent_bytes),
                bytes(amount.received_bytes),
            ]
        }),
    )
}

/// A graph for Graphviz. What goes past the sidecar is dashed.
fn dot(talks: &[Counted]) -> String {
    let quoted = |text: &str| format!("\"{}\"", escaped(text).replace(['"', '\\'], ""));
    let edges = talks.iter().map(|Counted { talk, amount }| {
        let style = if talk.via == "direct" {
            ", style=dashed"
        } else {
            ""
        };
        format!(
            "  {} -> {} [label=\"{}\"{style}];\n",
            quoted(&format!("pod {}", talk.pod)),
            quoted(&format!("{}:{}", talk.destination, talk.port)),
            amount.connections
        )
    });
    format!("digraph connections {{\n{}}}", edges.collect::<String>())
}

#[cfg(test)]
mod tests;
