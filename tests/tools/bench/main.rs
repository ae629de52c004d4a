//! What interception costs: connections, round trips, load and the agent's start, with nothing, with
//! iptables and with sidetrack. Every figure of a table is a ratio of medians measured in turns (A, B, C,
//! A, B, C, ...), so that whatever else the machine does happens to all alike.

mod ambient;
mod crowd;
mod envoy;
mod field;
mod forwarding;
mod load;
mod plot;
mod pods;
mod queries;
mod report;
mod traced;
mod turn;
mod worker;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use lab::{ledger, private};

use crate::{
    crowd::Starts,
    field::Field,
    pods::{Contestant, Environment},
    report::{Format, Report, Series},
};

/// Measures what interception costs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// How many times every contestant has its turn
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Measure this; may be given several times [default: all connections that need neither Envoy nor a machine]
    #[arg(long, value_enum)]
    field: Vec<Field>,
    /// Measure only these, by their names in the table; the first one is the ratios' base
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Pods of the node with many
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u16).range(1..=2500))]
    pods: u16,
    /// Without --field: also measure with Envoy as the sidecar
    #[arg(long)]
    envoy: bool,
    /// Without --field: also measure with a machine behind the pod
    #[arg(long)]
    forwarding: bool,
    /// Without --field: also measure DNS queries
    #[arg(long)]
    dns: bool,
    /// Without --field: also measure pods in ambient mode
    #[arg(long)]
    ambient: bool,
    /// Also make one connection after the other, for so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u16).range(1..=600))]
    churn: Option<u16>,
    /// Also make so many connections that are open at a time
    #[arg(long, value_name = "CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=57_000))]
    hold: Option<u32>,
    /// Also make one connection after the other with and without a trace, so many turns of a second each
    #[arg(long, value_name = "TURNS", value_parser = clap::value_parser!(u32).range(1..=1000))]
    trace: Option<u32>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Write the figures as JSON to this file, too
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Measure nothing, and show the figures of such a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "churn", "hold", "trace", "field", "only"])]
    saved: Option<PathBuf>,
    /// Draw the figures as SVG into this directory
    #[arg(long, value_name = "DIRECTORY")]
    plot: Option<PathBuf>,
}

/// Connections or round trips in one turn.
const PER_TURN: u32 = 200;

fn main() -> ExitCode {
    if let Some(outcome) = worker::run_if_worker() {
        return outcome;
    }
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let report = match &options.saved {
        Some(path) => Report::read(path)?,
        None => measure(options)?,
    };
    if let Some(path) = &options.save {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    if let Some(dir) = &options.plot {
        plot::draw(&report, dir)?;
    }
    report.print(options.output)
}

fn measure(options: &Options) -> Result<Report> {
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let mut environment = Environment::new(options.pods.into())?;
    let applied = environment.time_to_apply()?;
    // Once: the nodes that are made further on are alike.
    let starts = Starts {
        idle_us: environment.crowd.idle()?.as_micros() as u64,
        ..environment.crowd.starts
    };
    let mut report = Report::new(options.rounds, PER_TURN, applied, starts)?;
    let wanted = |all: &[Field], is_default: bool| -> Vec<Field> {
        if options.field.is_empty() && is_default {
            return all.to_vec();
        }
        let chosen = options.field.iter().filter(|field| all.contains(field));
        chosen.copied().collect()
    };
    for field in wanted(Field::ALL, true) {
        if field == Field::ManyDestinationsV6 {
            // Those of IPv4 have used up most of the pool of targets.
            drop(environment);
            environment = Environment::new(options.pods.into())?;
        }
        add(&mut report, environment.contestants(field)?, field, options)?;
    }
    drop(environment);
    let fields = wanted(Field::ENVOY, options.envoy);
    if !fields.is_empty() {
        let meshed = envoy::Meshed::new()?;
        for field in fields {
            add(&mut report, meshed.contestants(field), field, options)?;
        }
    }
    let fields = wanted(Field::FORWARDING, options.forwarding);
    if !fields.is_empty() {
        let pods = forwarding::Forwarding::new()?;
        for field in fields {
            add(&mut report, pods.contestants(field), field, options)?;
        }
    }
    let fields = wanted(Field::QUERIES, options.dns);
    if !fields.is_empty() {
        let pods = queries::Queries::new()?;
        for field in fields {
            add(&mut report, pods.contestants(), field, options)?;
        }
    }
    let fields = wanted(Field::AMBIENT, options.ambient);
    if !fields.is_empty() {
        let pods = ambient::Ambient::new()?;
        for field in fields {
            add(&mut report, pods.contestants(field), field, options)?;
        }
    }
    if options.churn.is_some() || options.hold.is_some() || options.trace.is_some() {
        measure_load(&mut report, options)?;
    }
    Ok(report)
}

/// In pods of its own: those of the tables have used up most of the pool of targets.
fn measure_load(report: &mut Report, options: &Options) -> Result<()> {
    let environment = Environment::new(options.pods.into())?;
    if let Some(seconds) = options.churn {
        report.churn = load::churn(&environment, seconds.into())?;
    }
    if let Some(connections) = options.hold {
        report.held = load::hold(&environment, connections)?;
    }
    if let Some(turns) = options.trace {
        report.traced = Some(traced::measure(&environment, turns)?);
    }
    Ok(())
}

/// Measures a field.
fn add(
    report: &mut Report,
    contestants: Vec<Contestant<'_>>,
    field: Field,
    options: &Options,
) -> Result<()> {
    report.add(field, &take_turns(contestants, field, options)?);
    Ok(())
}

fn take_turns(
    mut contestants: Vec<Contestant<'_>>,
    field: Field,
    options: &Options,
) -> Result<Vec<Series>> {
    if !options.only.is_empty() {
        contestants.retain(|contestant| options.only.iter().any(|name| name == contestant.name));
    }
    ensure!(
        !contestants.is_empty(),
        "nothing in the table is named {:?}",
        options.only
    );
    let names = contestants.iter().map(|contestant| contestant.name);
    let mut series: Vec<Series> = names.map(Series::new).collect();
    // Turns that do not count: caches, and the first use of everything, so of each destination.
    let first = u32::from(field.destinations()).div_ceil(PER_TURN) as usize;
    for round in 0..first + options.rounds as usize {
        // Each begins equally often: a turn after a slow one finds cold caches.
        for place in 0..contestants.len() {
            let number = (round + place) % contestants.len();
            let turn = turn::turn(&contestants[number], field, PER_TURN)?;
            if round >= first {
                series[number].add(turn);
            }
        }
    }
    Ok(series)
}
