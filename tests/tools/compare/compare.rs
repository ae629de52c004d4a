//! Runs the matrix in both pods and compares what both ends see.

mod known;

use std::{net::SocketAddr, thread};

use crate::{
    explain::{Explainer, agrees},
    matrix::{Case, Family, Origin, cases},
    pair::{PairedPod, PodPair},
    profiles::{Known, More, Profile},
    report::Report,
    target::Target,
};
use anyhow::{Result, anyhow};
use lab::protocol::{Connected, Names};

/// What came of one connection, source ports aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// errno.
    Fails(i32),
    /// Both ends.
    Connects(Box<Seen>),
}

/// What both ends see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The port the accepting listener is bound to.
    pub accepted_by: u16,
    /// The connecting end.
    pub client: Names,
    /// The accepting end.
    pub server: Names,
}

/// Timeout of the second look. It is longer than the three seconds after which the kernel reports that no host of the
/// network has an address: otherwise chance decides which pod gets this report.
const SECOND_TIMEOUT_MS: u64 = 4_000;

/// Makes a family's connections under the present target and compares.
pub fn run(pair: &PodPair, family: Family, target: &Target, report: &mut Report) -> Result<()> {
    let mut cases = cases(family, target, pair.profile);
    for case in &mut cases {
        case.dial.resets = pair.profile.and_then(Profile::crowd).is_some();
    }
    let explainer = Explainer::new(pair.places())?;
    let mut again = Vec::new();
    for (case, oracle, ours) in both(pair, &cases)? {
        match evaluate(&explainer, case, pair, target, [&oracle, &ours]) {
            Ok(difference) => report.passed(difference),
            Err(_) => again.push(case.clone()),
        }
    }
    // On a busy machine an answer may come late: what disagrees is looked at once more.
    for case in &mut again {
        case.dial.patience_ms = SECOND_TIMEOUT_MS;
    }
    report.repeated += again.len();
    for (case, oracle, ours) in both(pair, &again)? {
        match evaluate(&explainer, case, pair, target, [&oracle, &ours]) {
            Ok(difference) => report.passed(difference),
            Err(answers) => report.failed(&case.name, answers),
        }
    }
    Ok(())
}

/// Makes connections through both, at the same time.
fn both<'a>(pair: &PodPair, cases: &'a [Case]) -> Result<Vec<(&'a Case, Outcome, Outcome)>> {
    let (oracle, ours) = thread::scope(|scope| {
        let oracle = scope.spawn(|| outcomes(&pair.oracle, cases));
        let ours = outcomes(&pair.ours, cases)?;
        let oracle = oracle
            .join()
            .map_err(|_| anyhow!("the oracle's thread panicked"))??;
        anyhow::Ok((oracle, ours))
    })?;
    let outcomes = oracle.into_iter().zip(ours);
    Ok(cases
        .iter()
        .zip(outcomes)
        .map(|(case, (oracle, ours))| (case, oracle, ours))
        .collect())
}

/// Whether both did the same, with the name of a wanted difference, and explain says so; otherwise
/// what each did.
fn evaluate(
    explainer: &Explainer,
    case: &Case,
    pair: &PodPair,
    target: &Target,
    [oracle, ours]: [&Outcome; 2],
) -> Result<Option<&'static str>, [(&'static str, String); 3]> {
    if oracle != ours
        && let Some(profile) = pair.profile
        && let Some(difference) = known::under(profile, case, target, [oracle, ours])
    {
        return Ok(Some(difference));
    }
    let verdict = explainer.verdict(case);
    // Of a bound port the kernel decides after the rules.
    let is_in_use = case.dial.beside.is_some() && *ours == Outcome::Fails(libc::EADDRNOTAVAIL);
    // Nor does the decision say what a filter or the way back does with packets, or that a source is not the pod's.
    let is_lost = |profile: &Profile| match ours {
        Outcome::Fails(libc::EINPROGRESS) => true,
        Outcome::Fails(libc::ENETUNREACH) => profile.more.contains(&More::ForeignSource),
        Outcome::Fails(libc::EADDRNOTAVAIL) => profile.known.contains(&Known::WithoutV6),
        _ => false,
    };
    let is_lost = oracle == ours && pair.profile.is_some_and(is_lost);
    let has_agreed = is_in_use || agrees(case, verdict, ours) || is_lost;
    if has_agreed && oracle == ours {
        return Ok(None);
    }
    let difference = has_agreed.then(|| known::difference(case, target, oracle, ours));
    difference.flatten().map(Some).ok_or_else(|| {
        [
            ("explain", format!("{verdict:?}")),
            ("iptables", format!("{oracle:?}")),
            ("sidetrack", format!("{ours:?}")),
        ]
    })
}

fn outcomes(pod: &PairedPod, cases: &[Case]) -> Result<Vec<Outcome>> {
    let mut results = Vec::new();
    // In the order of the cases.
    for origin in Origin::ALL {
        let own = cases.iter().filter(|case| case.from == origin);
        let dials: Vec<_> = own.map(|case| case.dial.clone()).collect();
        if !dials.is_empty() {
            results.extend(pod.actor(origin)?.dial_together(dials)?);
        }
    }
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
    if !names.local.ip().to_canonical().is_ipv4() {
        // Asked of an IPv6 connection, connection tracking looks for an IPv4 one of the same ports
        // from an address that such a socket does not have, and sometimes finds an old one.
        names.original_v4 = Err(libc::ENOENT);
    }
    for addr in [&mut names.original_v4, &mut names.original_v6]
        .into_iter()
        .flatten()
    {
        hide(addr);
    }
    names
}
