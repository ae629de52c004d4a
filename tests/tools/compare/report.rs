//! Counts and disagreements, for people as they come or for programs at the end.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Result;
use serde::Serialize;

use crate::profiles::Profile;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Connections of a rule, as everybody has counted them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RuleCounts {
    /// What was made.
    pub made: u64,
    /// Packets that the lines of the rule have counted in iptables; none if the rule has no line.
    pub iptables: Option<u64>,
    /// `sidetrack rules`.
    pub rules: u64,
    /// `sidetrack trace`.
    pub trace: u64,
    /// `sidetrack_connections_total`.
    pub metrics: u64,
}

impl RuleCounts {
    /// In the order of the table.
    fn columns(&self) -> [(&'static str, String); 5] {
        let iptables = self.iptables.map(|count| count.to_string());
        [
            ("made", self.made.to_string()),
            ("iptables", iptables.unwrap_or_else(|| "-".to_owned())),
            ("rules", self.rules.to_string()),
            ("trace", self.trace.to_string()),
            ("metrics", self.metrics.to_string()),
        ]
    }
}

/// Everything so far.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(skip)]
    format: Format,
    passed: usize,
    failed: usize,
    /// Connections that were looked at twice.
    pub repeated: usize,
    wanted_differences: BTreeMap<&'static str, usize>,
    /// Connections of known loads by rule.
    load: BTreeMap<String, RuleCounts>,
    /// Events that traces of loads have not shown, and said so.
    not_traced: u64,
    /// The profile of what follows.
    #[serde(skip)]
    profile: Option<&'static str>,
    cells: Vec<Cell>,
    disagreements: Vec<Disagreement>,
}

/// A policy in one dialect and family.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    profile: Option<&'static str>,
    policy: String,
    dialect: String,
    family: &'static str,
    cases: usize,
    disagreements: usize,
}

#[derive(Debug, Serialize)]
struct Disagreement {
    profile: Option<&'static str>,
    policy: String,
    dialect: String,
    family: &'static str,
    connection: String,
    /// What each of the two that disagree says.
    answers: BTreeMap<&'static str, String>,
}

impl Report {
    /// Nothing yet; prints the table's head.
    pub fn new(format: Format, dialects: &[&str]) -> Self {
        if format == Format::Table {
            println!("connections/disagreements by policy and dialect, IPv4 and IPv6\n");
            print!("{:<22}", "");
            for dialect in dialects {
                print!("{dialect:>22}");
            }
        }
        Self {
            format,
            passed: 0,
            failed: 0,
            repeated: 0,
            wanted_differences: BTreeMap::new(),
            load: BTreeMap::new(),
            not_traced: 0,
            profile: None,
            cells: Vec::new(),
            disagreements: Vec::new(),
        }
    }

    /// What follows is under these settings.
    pub fn profile(&mut self, profile: &Profile) {
        self.profile = Some(profile.name);
        if self.format == Format::Table {
            print!("\n\n{}: {}", profile.name, profile.stands_for);
        }
    }

    /// A line of the table begins.
    pub fn policy(&self, policy: &str) {
        if self.format == Format::Table {
            print!("\n{policy:<22}");
        }
    }

    /// What follows is of this policy, dialect and family.
    pub fn begin(&mut self, policy: &str, dialect: &str, family: &'static str) {
        self.cells.push(Cell {
            profile: self.profile,
            policy: policy.to_owned(),
            dialect: dialect.to_owned(),
            family,
            cases: 0,
            disagreements: 0,
        });
    }

    /// One column of the table is complete: the last so many families.
    pub fn end(&self, families: usize) -> Result<()> {
        if self.format == Format::Table {
            let cells = &self.cells[self.cells.len() - families..];
            let cells: Vec<String> = cells
                .iter()
                .map(|cell| format!("{}/{}", cell.cases, cell.disagreements))
                .collect();
            let cells = match families {
                0 => "rejected".to_owned(),
                _ => cells.join(" "),
            };
            print!("{cells:>22}");
            io::stdout().flush()?;
        }
        Ok(())
    }

    /// Both did the same, or differed as they should.
    pub fn passed(&mut self, difference: Option<&'static str>) {
        self.passed += 1;
        if let Some(difference) = difference {
            *self.wanted_differences.entry(difference).or_default() += 1;
        }
        if let Some(cell) = self.cells.last_mut() {
            cell.cases += 1;
        }
    }

    /// They disagree.
    pub fn failed<const N: usize>(
        &mut self,
        connection: &str,
        answers: [(&'static str, String); N],
    ) {
        self.failed += 1;
        let Some(cell) = self.cells.last_mut() else {
            return;
        };
        cell.cases += 1;
        cell.disagreements += 1;
        self.disagreements.push(Disagreement {
            profile: cell.profile,
            policy: cell.policy.clone(),
            dialect: cell.dialect.clone(),
            family: cell.family,
            connection: connection.to_owned(),
            answers: answers.into(),
        });
    }

    /// So many connections of a load were made.
    pub fn loaded(&mut self, connections: usize) {
        self.passed += connections;
        if let Some(cell) = self.cells.last_mut() {
            cell.cases += connections;
        }
    }

    /// What a rule has counted of a load; `traced` says whether the trace agrees.
    pub fn rule(&mut self, name: &str, counts: &RuleCounts, traced: bool) {
        let sum = self.load.entry(name.to_owned()).or_default();
        sum.made += counts.made;
        sum.iptables = match (sum.iptables, counts.iptables) {
            (None, None) => None,
            (sum, more) => Some(sum.unwrap_or_default() + more.unwrap_or_default()),
        };
        sum.rules += counts.rules;
        sum.trace += counts.trace;
        sum.metrics += counts.metrics;
        let is_equal = [
            counts.rules,
            counts.metrics,
            counts.iptables.unwrap_or(counts.made),
        ]
        .iter()
        .all(|count| *count == counts.made);
        if !is_equal || !traced {
            self.failed(name, counts.columns());
        }
    }

    /// The trace of a load has said that so many events are missing.
    pub fn lost(&mut self, events: u64) {
        self.not_traced += events;
    }

    /// Prints what remains to print; the sum decides the exit code.
    pub fn close(&self) -> Result<ExitCode> {
        match self.format {
            Format::Json => println!("{}", serde_json::to_string_pretty(self)?),
            Format::Table => self.print(),
        }
        Ok(if self.failed == 0 && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn print(&self) {
        println!();
        if !self.wanted_differences.is_empty() {
            println!("\nknown and wanted differences (docs/semantics.md), counted as passed:");
        }
        for (difference, times) in &self.wanted_differences {
            println!("  {times:>6}  {difference}");
        }
        println!(
            "\nexplain agreed with the kernel's decision about each that passed; {} were looked at twice",
            self.repeated
        );
        self.print_load();
        for it in &self.disagreements {
            let profile = it.profile.map(|name| format!("{name}: "));
            println!(
                "\n{}{} {} {}: {}",
                profile.unwrap_or_default(),
                it.policy,
                it.dialect,
                it.family,
                it.connection
            );
            for (who, what) in &it.answers {
                println!("    {who:<10} {what}");
            }
        }
        println!("\n{} passed, {} failed", self.passed, self.failed);
    }

    fn print_load(&self) {
        if self.load.is_empty() {
            return;
        }
        println!(
            "\nknown loads: connections by rule, as everybody counted them; {} events were missing in the trace",
            self.not_traced
        );
        let heading = RuleCounts::default()
            .columns()
            .map(|(name, _)| format!("{name:>10}"));
        println!("{:<28}{}", "", heading.concat());
        for (name, counts) in &self.load {
            let columns = counts.columns().map(|(_, count)| format!("{count:>10}"));
            println!("{name:<28}{}", columns.concat());
        }
    }
}
