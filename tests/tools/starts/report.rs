//! What came out.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use serde::Serialize;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Starts of one kind.
#[derive(Debug, Default)]
pub struct Loop {
    /// First connections that the sidecar had.
    pub intercepted: u64,
    /// That went past it.
    pub missed: u64,
    /// That failed.
    pub lost: u64,
    /// Starts that the plugin did not allow, and that were tried again.
    pub refused: u64,
    /// Agents that were ended meanwhile.
    pub kills: u64,
    /// How long the plugin took each time; without it, from a pod's first process to its enrollment.
    pub took: Vec<Duration>,
}

/// All.
#[derive(Debug)]
pub struct Report {
    /// Pods the node had already.
    pub node: u32,
    /// With the plugin.
    pub plugin: Loop,
    /// While agents were killed.
    pub kills: Loop,
    /// Without the plugin.
    pub gate: Loop,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    starts: u64,
    missed: u64,
    lost: u64,
    add_failed: u64,
    agents_ended: u64,
    median_ms: f64,
    p99_ms: f64,
    longest_ms: f64,
}

impl Loop {
    fn row(&self, name: &'static str) -> Row {
        let mut took = self.took.clone();
        took.sort();
        let at = |quantile: f64| {
            let last = took.len().saturating_sub(1);
            let place = (last as f64 * quantile).round() as usize;
            took.get(place).map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        Row {
            name,
            starts: self.intercepted + self.missed + self.lost,
            missed: self.missed,
            lost: self.lost,
            add_failed: self.refused,
            agents_ended: self.kills,
            median_ms: at(0.5),
            p99_ms: at(0.99),
            longest_ms: at(1.0),
        }
    }
}

impl Report {
    /// Prints it; fails if a connection was missed or lost.
    pub fn print(&self, format: Format) -> Result<ExitCode> {
        let rows = [
            self.plugin.row("with the CNI plugin"),
            self.kills.row("the same, agents killed"),
            self.gate.row("without it, behind the gate"),
        ];
        // A start waits for the next agent. Only one whose time is nearly over may fail.
        let impatient = |row: &Row| row.add_failed.saturating_sub(row.agents_ended);
        let failed: u64 = rows
            .iter()
            .map(|row| row.missed + row.lost + impatient(row))
            .sum();
        let passed: u64 = rows
            .iter()
            .map(|row| row.starts - row.missed - row.lost)
            .sum();
        match format {
            Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
            Format::Table => {
                println!(
                    "Pods whose app connects out as its first instruction, on a node with {} others",
                    self.node
                );
                println!();
                println!(
                    "{:<28} {:>6} {:>6} {:>6} {:>11} {:>6} {:>9} {:>8} {:>8}",
                    "",
                    "starts",
                    "missed",
                    "lost",
                    "ADD refused",
                    "kills",
                    "median ms",
                    "p99 ms",
                    "max ms"
                );
                for row in &rows {
                    println!(
                        "{:<28} {:>6} {:>6} {:>6} {:>11} {:>6} {:>9.1} {:>8.1} {:>8.1}",
                        row.name,
                        row.starts,
                        row.missed,
                        row.lost,
                        row.add_failed,
                        row.agents_ended,
                        row.median_ms,
                        row.p99_ms,
                        row.longest_ms
                    );
                }
                println!();
                println!(
                    "The times are those of the plugin's ADD; without it, from a pod's first process to its enrollment."
                );
            }
        }
        println!("{passed} passed, {failed} failed");
        Ok(if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
