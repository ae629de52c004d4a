//! Runs the matrix in both pods and compares what both ends see.

use std::{
    net::{Ipv4Addr, SocketAddr},
    thread,
};

use anyhow::{Result, anyhow};
use lab::protocol::{Connected, Names};
use sidetrack_policy::Mode;

use crate::{
    explain::{Explainer, agrees},
    matrix::{Case, Family, cases},
    pair::{PairedPod, PodPair},
    report::Report,
    target::Target,
};

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

/// Timeout of the second look. It is longer than the three seconds after which the kernel reports that nobody on the
/// network has an address: otherwise chance decides which pod is told so.
const SECOND_TIMEOUT_MS: u64 = 4_000;

/// Makes a family's connections under the present target and compares.
pub fn run(pair: &PodPair, family: Family, target: &Target, report: &mut Report) -> Result<()> {
    let cases = cases(family, target);
    let explainer = Explainer::new(pair.places())?;
    let mut again = Vec::new();
    for (case, oracle, ours) in both(pair, &cases)? {
        match evaluate(&explainer, case, target, &oracle, &ours) {
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
        match evaluate(&explainer, case, target, &oracle, &ours) {
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
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Result<Option<&'static str>, [(&'static str, String); 2]> {
    let verdict = explainer.verdict(case);
    // Of a bound port the kernel decides after the rules.
    let is_taken = case.dial.beside.is_some() && *ours == Outcome::Fails(libc::EADDRNOTAVAIL);
    if !is_taken && !agrees(case, verdict, ours) {
        return Err([
            ("explain", format!("{verdict:?}")),
            ("sidetrack", format!("{ours:?}")),
        ]);
    }
    if oracle == ours {
        return Ok(None);
    }
    wanted_difference(case, target, oracle, ours)
        .map(Some)
        .ok_or_else(|| {
            [
                ("iptables", format!("{oracle:?}")),
                ("sidetrack", format!("{ours:?}")),
            ]
        })
}

/// The name of a difference that is there on purpose; `None` for any other.
fn wanted_difference(
    case: &Case,
    target: &Target,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    let dialed = case.dial.destination;
    if case.arrives_by.is_none() && case.dial.device.is_some() {
        // The redirect to lo that iptables makes can never be answered.
        let lost = matches!(
            oracle,
            Outcome::Fails(libc::EINPROGRESS | libc::ETIMEDOUT | libc::EHOSTUNREACH)
        );
        let refused = *ours == Outcome::Fails(libc::ECONNREFUSED);
        // Root may take the binding off.
        let redirected =
            matches!(ours, Outcome::Connects(seen) if seen.accepted_by != dialed.port());
        return (lost && (refused || redirected))
            .then_some("SO_BINDTODEVICE: times out under iptables, refused or redirected");
    }
    let is_of_mangle =
        target.policy.mode == Mode::Tproxy && target.policy.dialect.proxy_mark().is_none();
    if case.is_forwarded && is_of_mangle {
        // The rules mark every packet of an established connection that enters, also the answers to one that they
        // left alone, and the mark keeps these in the pod.
        let lost = *oracle == Outcome::Fails(libc::EINPROGRESS);
        let passed = match ours {
            Outcome::Fails(errno) => *errno == libc::ECONNREFUSED,
            Outcome::Connects(seen) => seen.accepted_by == dialed.port(),
        };
        return (lost && passed).then_some(
            "through a pod in mode TPROXY, captured by no rule: times out under iptables, passes",
        );
    }
    if case.dial.transparent && dialed.ip() == Ipv4Addr::LOCALHOST {
        // The rules restore the mark of the answers after these were routed, and 127.0.0.1 cannot leave the pod.
        let lost = *oracle == Outcome::Fails(libc::EINPROGRESS);
        return lost.then_some(
            "the client's address to 127.0.0.1 in mode TPROXY: times out under iptables, reaches the app",
        );
    }
    if case.dial.transparent && target.policy.includes_loopback() {
        let redirected = match oracle {
            Outcome::Fails(errno) => *errno == libc::EINPROGRESS,
            Outcome::Connects(seen) => seen.accepted_by == target.policy.inbound_port,
        };
        let reaches_app = match ours {
            // Off the pod the mark's route leads nowhere.
            Outcome::Fails(errno) => [libc::ECONNREFUSED, libc::EINPROGRESS].contains(errno),
            Outcome::Connects(seen) => seen.accepted_by == dialed.port(),
        };
        return (redirected && reaches_app).then_some(
            "with the mark in mode TPROXY, by rules that capture loopback: redirected to the sidecar under iptables, reaches the app, or nothing off the pod",
        );
    }
    if case.dial.dissolve && target.policy.dialect.proxy_mark() == Some(case.dial.mark) {
        let accepted_by = |it: &Outcome, port: u16| matches!(it, Outcome::Connects(seen) if seen.accepted_by == port);
        let differs =
            accepted_by(oracle, dialed.port()) && accepted_by(ours, target.policy.outbound_port);
        return differs.then_some(
            "ztunnel's socket that has called its pod, connected again: untouched under iptables, captured",
        );
    }
    if case.dial.segment.is_some() {
        let refused = *ours == Outcome::Fails(libc::ECONNREFUSED);
        return refused
            .then_some("IPv6 routing header: evaluated by its first hop under iptables, refused");
    }
    let Outcome::Connects(seen) = oracle else {
        return None;
    };
    if case.dial.beside.is_some() && !target.policy.rules_ignore_capture_range() {
        let taken = *ours == Outcome::Fails(libc::EADDRNOTAVAIL);
        return taken.then_some(
            "bound port used twice, by rules that capture loopback: remapped under iptables, EADDRNOTAVAIL",
        );
    }
    let mut wanted = seen.clone();
    wanted.server.local = dialed;
    // No packet of an inbound connection is rewritten.
    (case.arrives_by.is_some() && *ours == Outcome::Connects(wanted)).then_some(
        "accepted inbound socket: named by the capture port under iptables, by the original destination by sidetrack",
    )
}

fn outcomes(pod: &PairedPod, cases: &[Case]) -> Result<Vec<Outcome>> {
    let (outbound, others): (Vec<_>, Vec<_>) =
        cases.iter().partition(|case| case.arrives_by.is_none());
    let (of_machine, inbound) = others.into_iter().partition(|case| case.from_machine);
    let dials = |cases: Vec<&Case>| cases.iter().map(|case| case.dial.clone()).collect();
    let mut results = pod.client.dial_all(dials(outbound))?;
    // In the order of the cases.
    results.extend(pod.outside.dial_all(dials(inbound))?);
    results.extend(pod.machine.dial_all(dials(of_machine))?);
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
