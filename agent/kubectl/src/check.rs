//! `kubectl sidetrack check`: whether a cluster is ready for sidetrack, before it is installed.

mod istio;
mod namespaces;
mod network;
mod nodes;

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use kube::api::ListParams;
use serde::Serialize;
use sidetrack_base::runtime::exit_code;
use sidetrack_policy::select::Enroll;

use self::{
    istio::Istio,
    namespaces::{NamespaceRow, Surroundings},
    network::Network,
    nodes::NodeRow,
};
use crate::{cluster::Cluster, flags::Format, kernel::kernels, output};

#[derive(Debug, Args)]
pub struct Options {
    /// Which sidecar pods the agents are to enroll, as the chart's value
    #[arg(long, value_name = "MODE", value_enum, default_value = "labeled")]
    enroll: Enroll,
    /// Form of the output
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct CheckReport {
    nodes: Vec<NodeRow>,
    istio: Istio,
    network: Network,
    namespaces: Vec<NamespaceRow>,
    #[serde(flatten)]
    remarks: Remarks,
}

/// Sentences.
#[derive(Debug, Default, Serialize)]
struct Remarks {
    /// What people should know.
    notes: Vec<String>,
    /// What is in the way.
    problems: Vec<String>,
}

impl Remarks {
    /// Keeps what could be read. What could not is unknown, not absent.
    fn known<T>(&mut self, what: &str, read: Result<T>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                self.notes.push(format!("unknown: {what}: {error:#}"));
                None
            }
        }
    }
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let (nodes, pods, labels) = tokio::try_join!(
        cluster.linux_nodes(),
        cluster.pods_in(None, ListParams::default()),
        cluster.namespace_labels(None),
    )?;
    let mut remarks = Remarks::default();
    let kernels = kernels(&nodes);
    let nodes = nodes::rows(&nodes, &mut remarks);
    let istio = Istio::find(cluster, &mut remarks).await;
    let network = Network::find(cluster, &mut remarks).await;
    let handlers = cluster.runtime_handlers(&pods).await;
    let handlers = remarks.known("handlers of runtime classes", handlers);
    let on = Surroundings {
        labels: &labels,
        kernels: &kernels,
        handlers: &handlers.unwrap_or_default(),
        enroll: options.enroll,
    };
    let namespaces = namespaces::rows(&pods, &on, &mut remarks);
    let report = CheckReport {
        nodes,
        istio,
        network,
        namespaces,
        remarks,
    };
    output::show(options.output, &report, || text(&report))?;
    Ok(exit_code(report.remarks.problems.is_empty()))
}

fn text(report: &CheckReport) -> String {
    let nodes = report.nodes.iter().map(NodeRow::cells);
    let mut text = output::table(&["NODE", "KERNEL", "RESULT"], nodes);
    text.push('\n');
    text += &output::section("Istio", &report.istio.lines());
    text += &output::section("network", &report.network.lines());
    if !report.namespaces.is_empty() {
        let rows = report.namespaces.iter().map(NamespaceRow::cells);
        let header = [
            "NAMESPACE",
            "PODS WITH A SIDECAR",
            "WOULD BE ENROLLED",
            "REJECTED",
        ];
        text += &format!("\n{}\n", output::table(&header, rows));
    }
    text += &output::section("notes", &report.remarks.notes);
    text += &output::section("problems", &report.remarks.problems);
    text
}
