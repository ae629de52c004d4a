//! Ratios of medians, as a table with bars or as JSON.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::{pods::Field, worker::median};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// A contestant's turns.
#[derive(Debug, Serialize)]
pub struct Series {
    name: &'static str,
    /// Median of each turn, nanoseconds.
    turns: Vec<u64>,
}

impl Series {
    /// Nothing yet.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            turns: Vec::new(),
        }
    }

    /// A turn.
    pub fn add(&mut self, nanos: u64) {
        self.turns.push(nanos);
    }

    fn median(&self) -> u64 {
        median(&mut self.turns.clone())
    }

    /// Median of the ratios of turns that came one after the other.
    fn ratio(&self, base: &Self) -> f64 {
        const PARTS: f64 = 1e6;
        let mut ratios: Vec<u64> = self
            .turns
            .iter()
            .zip(&base.turns)
            .map(|(own, base)| (*own as f64 / (*base).max(1) as f64 * PARTS) as u64)
            .collect();
        median(&mut ratios) as f64 / PARTS
    }
}

#[derive(Debug, Serialize)]
struct Row {
    contestant: &'static str,
    /// Nanoseconds.
    median: u64,
    /// Against the first row.
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Table {
    field: Field,
    rows: Vec<Row>,
    /// Unless some were left out.
    #[serde(flatten)]
    summary: Option<Summary>,
}

#[derive(Debug, Serialize)]
struct Summary {
    /// Many ranges and ports against one of each.
    sidetrack_many_to_one: f64,
    iptables_many_to_one: f64,
    /// Default policies.
    sidetrack_to_iptables: f64,
}

impl Summary {
    /// Of all contestants, in the order of `Environment`.
    fn of(series: &[Series]) -> Option<Self> {
        let [
            _,
            iptables,
            iptables_one,
            iptables_many,
            _,
            sidetrack,
            one,
            many,
        ] = series
        else {
            return None;
        };
        Some(Self {
            sidetrack_many_to_one: many.ratio(one),
            iptables_many_to_one: iptables_many.ratio(iptables_one),
            sidetrack_to_iptables: sidetrack.ratio(iptables),
        })
    }
}

/// Everything measured.
#[derive(Debug, Serialize)]
pub struct Report {
    rounds: u32,
    per_turn: u32,
    /// From a changed manifest to an active policy of 5,000 ranges and 1,000 ports.
    applied_ms: u128,
    tables: Vec<Table>,
}

impl Report {
    /// No tables yet.
    pub fn new(rounds: u32, per_turn: u32, applied: Duration) -> Self {
        Self {
            rounds,
            per_turn,
            applied_ms: applied.as_millis(),
            tables: Vec::new(),
        }
    }

    /// A field's contestants, in the order of `Environment`. The first is the ratios' base.
    pub fn add(&mut self, field: Field, series: &[Series]) {
        let Some(base) = series.first() else { return };
        self.tables.push(Table {
            field,
            rows: series
                .iter()
                .map(|series| Row {
                    contestant: series.name,
                    median: series.median(),
                    ratio: series.ratio(base),
                })
                .collect(),
            summary: Summary::of(series),
        });
    }

    /// Prints it.
    pub fn print(&self, format: Format) -> Result<()> {
        if format == Format::Json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!(
            "medians of {} turns of {} each, alternating; ratios are medians of ratios turn by turn\n",
            self.rounds, self.per_turn
        );
        for table in &self.tables {
            println!("{}\n", table.field.title());
            for row in &table.rows {
                let bar = "#".repeat((row.ratio * 10.0).round().clamp(1.0, 60.0) as usize);
                println!(
                    "  {:<40} {:>8.2} us {:>6.2}  {bar}",
                    row.contestant,
                    row.median as f64 / 1000.0,
                    row.ratio
                );
            }
            println!();
            if let Some(summary) = &table.summary {
                println!(
                    "  many ranges and ports to one of each: sidetrack {:.2}, iptables {:.2}; sidetrack to iptables: {:.2}\n",
                    summary.sidetrack_many_to_one,
                    summary.iptables_many_to_one,
                    summary.sidetrack_to_iptables
                );
            }
        }
        println!(
            "5,000 ranges and 1,000 ports are active {} ms after the manifest changes",
            self.applied_ms
        );
        Ok(())
    }
}
