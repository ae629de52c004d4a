//! Lines of all nodes on stdout, remarks and the summary on stderr.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::Result;
use serde_json::json;
use sidetrack_base::runtime::exit_code;
use sidetrack_live::trace::{Columns, Summary, TraceLine, missing};
use sidetrack_policy::text::{counted, escaped};

use super::node::Item;
use crate::{
    cluster::{ON_OTHER_NODES, Places, PodOrigin},
    flags::Format,
    output::{self, SHOWN},
};

/// What is known of a node.
#[derive(Debug, Default)]
struct Node {
    /// Whether its trace runs.
    runs: bool,
    /// Why it last did not.
    silent: Option<String>,
}

/// What is shown.
#[derive(Debug)]
pub struct Show {
    nodes: BTreeMap<String, Node>,
    width: usize,
    format: Format,
    most: Option<u64>,
    columns: Columns,
    summary: Summary,
    /// How many connections of pods that are on other nodes a node has sent.
    elsewhere: BTreeMap<String, u64>,
    /// Whether there were such since the pods were listed: they may have moved.
    pub needs_relist: bool,
}

impl Show {
    /// Of these nodes. Prints the heading.
    pub fn new<'a>(
        nodes: impl Iterator<Item = &'a String>,
        format: Format,
        most: Option<u64>,
    ) -> Result<Self> {
        let nodes: BTreeMap<String, Node> =
            nodes.map(|node| (node.clone(), Node::default())).collect();
        let width = nodes.keys().map(|node| node.chars().count()).max();
        let show = Self {
            nodes,
            width: width.unwrap_or_default().max("NODE".len()),
            format,
            most,
            columns: Columns::default(),
            summary: Summary::default(),
            elsewhere: BTreeMap::new(),
            needs_relist: false,
        };
        if show.is_for_people() {
            let header = show.columns.header();
            output::print(&format!("{:<1$}  {header}", "NODE", show.width))?;
        }
        Ok(show)
    }

    fn is_for_people(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Shows what has come from a node.
    pub fn take(&mut self, item: Item, pods: &Places) -> Result<()> {
        match item {
            Item::Began { node } => {
                let state = self.nodes.entry(node.clone()).or_default();
                state.runs = true;
                if state.silent.is_some() {
                    output::remark(format!(
                        "node {node} answers again; its connections in between are missing"
                    ));
                }
            }
            Item::Silent { node, why } => {
                let state = self.nodes.entry(node.clone()).or_default();
                let is_news = state.runs || state.silent.as_ref() != Some(&why);
                state.runs = false;
                state.silent = Some(why.clone());
                let silent = self.nodes.values().filter(|it| !it.runs);
                let silent = silent.filter(|it| it.silent.is_some()).count();
                if is_news && silent <= SHOWN {
                    output::remark(escaped(&format!("node {node}: {why}")));
                } else if is_news && silent == SHOWN + 1 {
                    output::remark("more nodes do not answer; they are counted in the end");
                }
            }
            Item::Line { node, line } => self.line(&node, &line, pods)?,
            Item::Denied(denied) => return Err(denied.into()),
        }
        Ok(())
    }

    fn line(&mut self, node: &str, traced: &TraceLine, pods: &Places) -> Result<()> {
        if self.is_over() {
            return Ok(());
        }
        let text = match traced {
            TraceLine::Event(event) => {
                match pods.origin(node, &event.pod) {
                    PodOrigin::Accepted => {}
                    PodOrigin::NotSelected => return Ok(()),
                    PodOrigin::OtherNode => {
                        self.needs_relist = true;
                        *self.elsewhere.entry(node.to_owned()).or_default() += 1;
                        return Ok(());
                    }
                }
                self.summary.add(event);
                self.columns.line(event)
            }
            // Whose they were is not known.
            TraceLine::Lost(count) => {
                self.summary.add_lost(*count);
                missing(*count)
            }
        };
        if self.is_for_people() {
            let text = format!("{node:<0$}  {text}", self.width);
            return output::print(&escaped(&text));
        }
        let mut value = serde_json::to_value(traced)?;
        value["node"] = json!(node);
        output::print_one(self.format, &value)
    }

    /// Whether there are enough lines, or no process reads them.
    pub fn is_over(&self) -> bool {
        output::is_closed() || self.most.is_some_and(|most| self.summary.events >= most)
    }

    /// Prints the summary. Fails if a node was silent at any time.
    pub fn end(&self) -> ExitCode {
        if output::is_closed() {
            return ExitCode::SUCCESS;
        }
        for (node, count) in &self.elsewhere {
            let connections = counted(*count, "connection");
            output::remark(format!(
                "node {node}: {connections} of pods {ON_OTHER_NODES}"
            ));
        }
        let reasons = self.nodes.iter().filter_map(|(node, state)| {
            let silent = match (&state.silent, state.runs) {
                (None, true) => return None,
                (None, false) => "it has not answered yet",
                (Some(_), true) => "it was silent for a while",
                (Some(why), false) => why,
            };
            Some(format!("{node} ({silent})"))
        });
        let silent: Vec<String> = reasons.collect();
        let is_complete = silent.is_empty();
        let complete = self.nodes.len() - silent.len();
        let silent = output::first(silent, output::ALL_SILENT);
        let unknown = match is_complete {
            true => String::new(),
            false => format!("; connections are missing of {}", silent.join(", ")),
        };
        let summary = format!(
            "{complete} of {}: {}{unknown}",
            counted(self.nodes.len() as u64, "node"),
            self.summary.text()
        );
        output::remark(escaped(&summary));
        exit_code(is_complete)
    }
}
