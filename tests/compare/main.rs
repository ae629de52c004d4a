//! Holds sidetrack to the real iptables: the same connections through two identical pods, one with
//! the rule text loaded by iptables-restore, one enrolled. What anybody at either end can see is
//! compared.

mod compare;
mod explain;
mod grid;
mod policies;
mod twins;

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use support::{ledger, private};

use crate::{
    grid::Family,
    policies::{DIALECTS, POLICIES},
    twins::Twins,
};

/// What the command line selects; everything if it says nothing.
#[derive(Default)]
struct Selection {
    dialect: Option<String>,
    family: Option<String>,
    policy: Option<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn selection() -> Result<Selection> {
    let mut selection = Selection::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words
            .next()
            .with_context(|| format!("{word} needs a value"))?;
        let known: Vec<&str> = match word.as_str() {
            "--dialect" => DIALECTS.to_vec(),
            "--family" => vec!["v4", "v6"],
            "--policy" => POLICIES.iter().map(|policy| policy.name).collect(),
            _ => bail!("unknown option {word}; run `cargo xtask compare --help`"),
        };
        if !known.contains(&value.as_str()) {
            bail!("{word} {value}: choose one of {}", known.join(", "));
        }
        match word.as_str() {
            "--dialect" => selection.dialect = Some(value),
            "--family" => selection.family = Some(value),
            _ => selection.policy = Some(value),
        }
    }
    Ok(selection)
}

fn run() -> Result<ExitCode> {
    let selection = selection()?;
    private::require_root()?;
    private::enter()?;
    ledger::sweep()?;
    let chosen =
        |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    let twins = Twins::new()?;
    let mut summary = compare::Summary::default();
    println!("cases/disagreements by policy and dialect, IPv4 and IPv6\n");
    print!("{:<22}", "");
    for dialect in DIALECTS {
        if chosen(&selection.dialect, dialect) {
            print!("{dialect:>22}");
        }
    }
    println!();
    for policy in POLICIES
        .iter()
        .filter(|policy| chosen(&selection.policy, policy.name))
    {
        print!("{:<22}", policy.name);
        for dialect in DIALECTS {
            if !chosen(&selection.dialect, dialect) {
                continue;
            }
            twins.set(policy, dialect)?;
            let mut cell = Vec::new();
            for (family, name) in [(Family::V4, "v4"), (Family::V6, "v6")] {
                if chosen(&selection.family, name) {
                    let label = format!("{} {dialect} {name}", policy.name);
                    cell.push(summary.run(&twins, family, &label)?);
                }
            }
            print!("{:>22}", cell.join(" "));
            std::io::Write::flush(&mut std::io::stdout())?;
        }
        println!();
    }
    Ok(summary.close())
}
