//! Ratios of medians, as a table with bars or as JSON.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{
    crowd::Starts,
    field::Field,
    load::{Churn, Held},
    pods::{IPTABLES, SIDETRACK},
    traced::Traced,
    turn::Turn,
    worker::median,
};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// A contestant's turns.
#[derive(Debug)]
pub struct Series {
    name: &'static str,
    turns: Vec<Turn>,
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
    pub fn add(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// Median of a figure, and that of its ratios to another's, of turns that came one after the other.
    fn figure(&self, base: &Self, of: impl Fn(&Turn) -> u64) -> Figure {
        let [own, base] = [self, base].map(|it| it.turns.iter().map(&of).collect::<Vec<_>>());
        Figure::of(&own, &base)
    }
}

/// A median, and how it compares.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Nanoseconds.
    pub nanos: u64,
    /// To the first contestant of the table: median of the ratios turn by turn.
    pub ratio: f64,
}

impl Figure {
    /// The median of turns, and that of their ratios to others, each to the one of the same place.
    pub fn of(nanos: &[u64], base: &[u64]) -> Self {
        const PARTS: f64 = 1e6;
        let both = nanos.iter().zip(base);
        let ratio = |(own, base): (&u64, &u64)| *own as f64 / (*base).max(1) as f64;
        let mut ratios: Vec<u64> = both.map(|it| (ratio(it) * PARTS) as u64).collect();
        Self {
            nanos: median(&mut nanos.to_vec()),
            ratio: median(&mut ratios) as f64 / PARTS,
        }
    }
}

/// A contestant's figures.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub contestant: String,
    /// Of the client's call or calls.
    pub p50: Figure,
    /// Of them.
    pub p99: Figure,
    /// Processor time of both ends.
    pub cpu: Figure,
}

/// A field's rows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Table {
    /// The field.
    pub field: Field,
    /// In the order of the contestants.
    pub rows: Vec<Row>,
}

impl Table {
    /// The ratio of two contestants' medians.
    fn compare(&self, one: &str, other: &str) -> Option<f64> {
        let nanos = |name| {
            let row = self.rows.iter().find(|row| row.contestant == name)?;
            Some(row.p50.ratio)
        };
        Some(nanos(one)? / nanos(other)?)
    }
}

/// Everything measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// Processors of the machine.
    pub processors: usize,
    /// How many turns each contestant had.
    pub rounds: u32,
    /// Connections or round trips in a turn.
    pub per_turn: u32,
    /// From a changed manifest to an active policy of 10,000 ranges and 1,000 ports, milliseconds.
    pub applied_ms: u64,
    /// What an agent's start takes.
    pub starts: Starts,
    /// By field.
    pub tables: Vec<Table>,
    /// One connection after the other.
    pub churn: Vec<Churn>,
    /// Many at a time.
    pub held: Vec<Held>,
    /// With a trace of everything.
    #[serde(default)]
    pub traced: Option<Traced>,
}

impl Report {
    /// No tables yet.
    pub fn new(rounds: u32, per_turn: u32, applied: Duration, starts: Starts) -> Result<Self> {
        Ok(Self {
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            rounds,
            per_turn,
            applied_ms: applied.as_millis() as u64,
            starts,
            tables: Vec::new(),
            churn: Vec::new(),
            held: Vec::new(),
            traced: None,
        })
    }

    /// One that was printed as JSON.
    pub fn read(path: &std::path::Path) -> Result<Self> {
        let read = || format!("read {}", path.display());
        serde_json::from_str(&fs::read_to_string(path).with_context(read)?).with_context(read)
    }

    /// A field's contestants. The first is the ratios' base.
    pub fn add(&mut self, field: Field, series: &[Series]) {
        let Some(base) = series.first() else { return };
        let row = |series: &Series| Row {
            contestant: series.name.to_owned(),
            p50: series.figure(base, |turn| turn.p50),
            p99: series.figure(base, |turn| turn.p99),
            cpu: series.figure(base, |turn| turn.cpu),
        };
        self.tables.push(Table {
            field,
            rows: series.iter().map(row).collect(),
        });
    }

    /// Prints it.
    pub fn print(&self, format: Format) -> Result<()> {
        if format == Format::Json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!(
            "kernel {}, {} processors; medians of {} turns of {} each, alternating\nx: median of the ratios to the first line, turn by turn; cpu: of both ends\n",
            self.kernel, self.processors, self.rounds, self.per_turn
        );
        self.tables.iter().for_each(print_table);
        if !self.churn.is_empty() {
            println!("One connection after the other, to one destination\n");
        }
        for churn in &self.churn {
            println!(
                "  {:<42} {:>7} a second for {} s, p50 {:.2} us, p99 {:.2} us, {} failed",
                churn.contestant,
                churn.rate,
                churn.seconds,
                us(churn.p50),
                us(churn.p99),
                churn.failed
            );
        }
        if !self.held.is_empty() {
            println!("\nConnections at a time\n");
        }
        for held in &self.held {
            println!(
                "  {:<42} {:>7} held, {} failed, {} bytes each, p50 {:.2} us",
                held.contestant,
                held.connections,
                held.failed,
                held.bytes_each,
                us(held.p50)
            );
        }
        if let Some(traced) = &self.traced {
            print_traced(traced);
        }
        let Starts {
            pods,
            first_ms,
            takeover_ms,
            memory_kib,
            maps_kib,
            idle_us,
        } = self.starts;
        println!(
            "\n{pods} pods are enrolled {first_ms} ms after the first agent's start, {takeover_ms} ms after that of one that adopts them; it has {} MiB, its maps {}, and it uses {:.1} ms of a second when nothing changes\n10,000 ranges and 1,000 ports are active {} ms after the manifest changes",
            memory_kib / 1024,
            maps_kib / 1024,
            idle_us as f64 / 1000.0,
            self.applied_ms
        );
        Ok(())
    }
}

fn print_traced(traced: &Traced) {
    println!(
        "\nOne connection after the other, {} turns with `sidetrack trace` and without; {} connections failed\n",
        traced.turns, traced.failed
    );
    for (name, figure, rate) in [
        ("no trace", traced.untraced, traced.rates[0]),
        ("a trace of everything", traced.traced, traced.rates[1]),
        ("no trace, after it", traced.again, traced.rates[2]),
    ] {
        println!(
            "  {name:<42} {rate:>7} a second, p50 {:.2} us, x {:.3}",
            us(figure.nanos),
            figure.ratio
        );
    }
    println!(
        "\n  of {} connections the trace showed {} and said that {} are missing",
        traced.connections, traced.events, traced.missing
    );
}

fn us(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

fn print_table(table: &Table) {
    println!("{}\n", table.field.title());
    println!(
        "  {:<42} {:>10} {:>7} {:>10} {:>7} {:>10} {:>7}",
        "", "p50 us", "x", "p99 us", "x", "cpu us", "x"
    );
    for row in &table.rows {
        print!("  {:<42}", row.contestant);
        for figure in [row.p50, row.p99, row.cpu] {
            print!(" {:>10.2} {:>7.3}", us(figure.nanos), figure.ratio);
        }
        println!();
    }
    if let Some(ratio) = table.compare(SIDETRACK, IPTABLES) {
        println!("\n  sidetrack to iptables: {ratio:.2}");
    }
    println!();
}
