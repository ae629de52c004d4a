//! What interception costs: connect, round trips and inbound connections, with nothing, with
//! iptables and with sidetrack. Every figure is a ratio of medians measured in turns (A, B, C, A,
//! B, C, ...), so that whatever else the machine does happens to all alike.

mod pods;
mod report;
mod worker;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use lab::{ledger, private};

use crate::{
    pods::{Contestant, Environment, Field},
    report::{Format, Report, Series},
};

/// Measures what interception costs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench")]
struct Options {
    /// How many times every contestant has its turn
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=1000))]
    rounds: u32,
    /// Measure this alone
    #[arg(long, value_enum)]
    field: Option<Field>,
    /// Measure only these, by their names in the table; for profiles, as the first one is the ratios' base
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Form of the output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
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
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let environment = Environment::new()?;
    let applied = environment.time_to_apply()?;
    let mut report = Report::new(options.rounds, PER_TURN, applied);
    let fields = options
        .field
        .map_or(Field::ALL.to_vec(), |field| vec![field]);
    for field in fields {
        let mut contestants = environment.contestants(field);
        if !options.only.is_empty() {
            contestants
                .retain(|contestant| options.only.iter().any(|name| name == contestant.name));
        }
        ensure!(
            !contestants.is_empty(),
            "nothing in the table is named {:?}",
            options.only
        );
        let mut series: Vec<Series> = contestants
            .iter()
            .map(|contestant| Series::new(contestant.name))
            .collect();
        // One turn that does not count: caches, and the first use of everything.
        for round in 0..=options.rounds as usize {
            // Each begins equally often: a turn after a slow one finds cold caches.
            for place in 0..contestants.len() {
                let number = (round + place) % contestants.len();
                let nanos = turn(&contestants[number], field)?;
                if round > 0 {
                    series[number].add(nanos);
                }
            }
        }
        report.add(field, &series);
    }
    report.print(options.output)
}

/// The median of one turn, in nanoseconds.
fn turn(contestant: &Contestant<'_>, field: Field) -> Result<u64> {
    let to = contestant.to;
    match field {
        Field::Connect | Field::Arrive => {
            let nanos = contestant.client.ask(&format!("connect {to} {PER_TURN}"))?;
            contestant.server.ask("drain")?;
            Ok(nanos)
        }
        Field::RoundTrip => {
            contestant.server.tell("echo")?;
            let nanos = contestant
                .client
                .ask(&format!("round-trip {to} {PER_TURN}"))?;
            contestant.server.answer()?;
            Ok(nanos)
        }
    }
}
