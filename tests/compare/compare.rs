//! Runs the grid in both pods and compares what both ends see.

use std::{net::SocketAddr, process::ExitCode, thread};

use anyhow::{Result, anyhow};
use support::protocol::{Connected, Names};

use crate::{
    grid::{Case, Family, cases},
    twins::{Twin, Twins},
};

/// What came of one connection, source ports aside.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Fails(i32),
    Connects(Box<Seen>),
}

/// What both ends see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    accepted_by: u16,
    client: Names,
    server: Names,
}

/// Counts and disagreements so far.
#[derive(Debug, Default)]
pub struct Summary {
    passed: usize,
    wanted: usize,
    failed: Vec<String>,
}

impl Summary {
    /// Compares one family under the present policy; answers the table's cell.
    pub fn run(&mut self, twins: &Twins, family: Family, label: &str) -> Result<String> {
        let cases = cases(family);
        let (oracle, ours) = thread::scope(|scope| {
            let oracle = scope.spawn(|| outcomes(&twins.oracle, &cases));
            let ours = outcomes(&twins.ours, &cases)?;
            let oracle = oracle
                .join()
                .map_err(|_| anyhow!("the oracle's thread panicked"))??;
            anyhow::Ok((oracle, ours))
        })?;
        let before = self.failed.len();
        for ((case, oracle), ours) in cases.iter().zip(oracle).zip(ours) {
            if oracle == ours {
                self.passed += 1;
            } else if as_wanted(case, &oracle) == ours {
                self.passed += 1;
                self.wanted += 1;
            } else {
                self.failed.push(format!(
                    "{label}: {}\n    iptables   {oracle:?}\n    sidetrack  {ours:?}",
                    case.name
                ));
            }
        }
        Ok(format!("{}/{}", cases.len(), self.failed.len() - before))
    }

    /// Prints disagreements and the sum, which decides the exit code.
    pub fn close(self) -> ExitCode {
        const SHOWN: usize = 40;
        println!(
            "\nknown and wanted, counted as passed: {} times the sidecar's accepted inbound socket is named by \
             the original destination, not by the capture port (docs/semantics.md)",
            self.wanted
        );
        for failure in self.failed.iter().take(SHOWN) {
            println!("\n{failure}");
        }
        if self.failed.len() > SHOWN {
            println!("\n... and {} more", self.failed.len() - SHOWN);
        }
        println!("\n{} passed, {} failed", self.passed, self.failed.len());
        if self.failed.is_empty() && self.passed > 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// What sidetrack does on purpose where the oracle does this: no packet of an inbound connection is
/// rewritten, so the accepted socket's own address is the one that was dialled.
fn as_wanted(case: &Case, oracle: &Outcome) -> Outcome {
    let mut wanted = oracle.clone();
    if let Outcome::Connects(seen) = &mut wanted
        && !case.outbound
    {
        let dialled = case.dial.destination;
        seen.server.local = SocketAddr::new(dialled.ip(), dialled.port());
    }
    wanted
}

fn outcomes(twin: &Twin, cases: &[Case]) -> Result<Vec<Outcome>> {
    let (outbound, inbound): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.outbound);
    let dials = |cases: Vec<&Case>| cases.iter().map(|case| case.dial.clone()).collect();
    let mut results = twin.client.dial_all(dials(outbound))?;
    results.extend(twin.outside.dial_all(dials(inbound))?);
    Ok(results.into_iter().map(outcome).collect())
}

fn outcome(result: Result<Connected, i32>) -> Outcome {
    match result {
        Err(errno) => Outcome::Fails(errno),
        Ok(connected) => {
            // Address translation may give the connection yet another source port.
            let ports = [connected.client.local.port(), connected.server.peer.port()];
            Outcome::Connects(Box::new(Seen {
                accepted_by: connected.accepted_by,
                client: without_ports(connected.client, &ports),
                server: without_ports(connected.server, &ports),
            }))
        }
    }
}

/// Replaces the connecting socket's port, which the kernel picked, wherever it shows.
fn without_ports(mut names: Names, ports: &[u16]) -> Names {
    let hide = |addr: &mut SocketAddr| {
        if ports.contains(&addr.port()) {
            addr.set_port(0);
        }
    };
    hide(&mut names.local);
    hide(&mut names.peer);
    for original in [&mut names.original_v4, &mut names.original_v6] {
        if let Ok(addr) = original {
            hide(addr);
        }
    }
    names
}
