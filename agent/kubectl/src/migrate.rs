//! `kubectl sidetrack migrate`: what would change for the pods of a namespace.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{ResourceExt as _, api::ListParams};
use serde::Serialize;
use sidetrack_base::runtime::exit_code;
use sidetrack_policy::{
    facts::PodFacts,
    migration::{Migration, Programmer},
    select::{Enroll, LABEL, NamespaceLabels},
};

use crate::{
    cluster::{Cluster, handler_of},
    flags::Format,
    kernel::{Kernel, kernels, mesh_on},
    output,
};

#[derive(Debug, Args)]
pub struct Options {
    /// Has no effect: the plugin never changes anything, label the namespace yourself
    #[arg(long = "dry-run", hide = true)]
    _dry_run: bool,
    /// The namespace
    #[arg(value_name = "NAMESPACE")]
    of: String,
    /// Form of the output. The wide one has the rules
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    output: Format,
}

/// A pod.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    node: Option<String>,
    today: Programmer,
    then: &'static str,
    reason: Option<String>,
    differences: Vec<String>,
    rules_today: Option<Vec<String>>,
    rules_then: Option<Vec<String>>,
}

pub async fn run(cluster: &Cluster, options: &Options) -> Result<ExitCode> {
    let (namespaces, mut pods) = tokio::try_join!(
        cluster.all::<Namespace>(),
        cluster.pods_in(Some(&options.of), ListParams::default())
    )?;
    let namespace = namespaces
        .iter()
        .find(|namespace| namespace.name_any() == options.of)
        .with_context(|| format!("there is no namespace {}", options.of))?;
    let nodes: Result<Vec<Node>> = cluster.linux_nodes().await;
    let kernels = kernels(nodes.iter().flatten());
    pods.sort_by_key(|pod| pod.meta.full_name());
    let handlers = cluster.runtime_handlers(&pods).await;
    if let Err(error) = &nodes {
        output::remark(format!(
            "the kernels of the nodes are unknown, and assumed to be 5.17 or later: {error:#}"
        ));
    }
    if let Err(error) = &handlers {
        output::remark(format!(
            "the handlers of runtime classes are unknown, by which agents may reject more pods: {error:#}"
        ));
    }
    let handlers = handlers.unwrap_or_default();
    let rows = pods.iter().map(|pod| row(pod, &kernels, &handlers));
    let rows: Vec<Row> = rows.collect();
    output::show(options.output, &rows, || {
        let label = namespace.labels().get(LABEL);
        let is_disabled = label.is_some_and(|label| label == "disabled");
        let note = is_disabled.then(|| {
            format!(
                "namespace {} is labeled {LABEL}=disabled; this is what the label enabled would do",
                options.of
            )
        });
        text(&rows, note.as_slice(), options.output == Format::Wide)
    })?;
    Ok(exit_code(!rows.iter().any(|row| row.then == "rejected")))
}

fn row(
    pod: &PodFacts,
    kernels: &BTreeMap<String, Kernel>,
    handlers: &BTreeMap<String, String>,
) -> Row {
    let node = pod.spec.node_name.clone();
    let kernel = node.as_ref().and_then(|node| kernels.get(node));
    let mesh = mesh_on(kernel.copied(), Enroll::Labeled);
    let labels = NamespaceLabels::interception(Some("enabled"));
    let migration = Migration::of(pod, labels, handler_of(pod, handlers), &mesh);
    let (then, reason) = migration.then.named();
    Row {
        name: pod.meta.name.clone().unwrap_or_default(),
        node,
        today: migration.today,
        then,
        reason,
        differences: migration.differences,
        rules_today: migration.rules_today,
        rules_then: migration.rules_then,
    }
}

fn text(rows: &[Row], notes: &[String], wide: bool) -> String {
    let lines = rows.iter().map(|row| {
        let all: Vec<&str> = row
            .reason
            .iter()
            .chain(&row.differences)
            .map(String::as_str)
            .collect();
        let differences = match (all.is_empty(), &row.rules_today) {
            (true, Some(_)) => "none".to_owned(),
            (true, None) => "-".to_owned(),
            (false, _) => all.join("; "),
        };
        vec![
            row.name.clone(),
            row.today.name().to_owned(),
            row.then.to_owned(),
            differences,
        ]
    });
    let mut text = output::table(&["POD", "RULES TODAY BY", "THEN", "DIFFERENCES"], lines);
    text.push('\n');
    if wide {
        for (rules, names) in by_rules(rows) {
            text += &output::section(&format!("rules then of {}", names.join(", ")), rules);
        }
    }
    text += &output::section("notes", notes);
    text
}

/// Pods with the same rules are shown once.
fn by_rules(rows: &[Row]) -> BTreeMap<&Vec<String>, Vec<&str>> {
    let mut groups: BTreeMap<&Vec<String>, Vec<&str>> = BTreeMap::new();
    for row in rows {
        if let Some(rules) = &row.rules_then {
            groups.entry(rules).or_default().push(&row.name);
        }
    }
    groups
}
