//! DNS queries over UDP: who receives them, and where the answer comes from.

use std::{net::SocketAddr, thread};

use anyhow::{Result, anyhow};
use lab::{
    actor::Actor,
    protocol::{APP, PROXY, ROOT},
    udp::{SendUdp, UdpAnswer},
};
use sidetrack_common::{decide::Verdict, target::is_dedicated};

use crate::{
    explain::Explainer,
    matrix::{Family, creators, ip},
    pair::PodPair,
    profiles::{CHOSEN_SOURCE, Known, Profile, WITHOUT_V6},
    report::Report,
    target::Target,
};

/// Where the sidecars of all meshes answer.
const CAPTURE: [u16; 2] = [15053, 8600];

/// That of queries, and one that means nothing.
const PORTS: [u16; 2] = [53, 80];

/// Addresses of servers in the pod.
const INSIDE: [&str; 7] = [
    "127.0.0.1",
    "127.0.0.53",
    "10.77.0.2",
    "10.78.0.2",
    "::1",
    "fd77::2",
    "fd78::2",
];

/// And outside.
const OUTSIDE: [&str; 6] = [
    "10.109.118.31",
    "10.77.0.254",
    "10.78.0.254",
    "fd99::31",
    "fd77::fe",
    "fd78::fe",
];

/// An answer, or errno.
type Outcome = Result<UdpAnswer, i32>;

/// One datagram.
struct Query {
    send: SendUdp,
    name: String,
}

/// Answers at every address that is asked, and as the sidecar.
pub fn answer(servers: &Actor, outside: &Actor) -> Result<()> {
    for address in ["127.0.0.1", "::1"] {
        for port in CAPTURE {
            servers.answer_udp(&PROXY, SocketAddr::new(ip(address), port))?;
        }
    }
    for port in PORTS {
        for address in INSIDE {
            servers.answer_udp(&APP, SocketAddr::new(ip(address), port))?;
        }
        for address in OUTSIDE {
            outside.answer_udp(&ROOT, SocketAddr::new(ip(address), port))?;
        }
    }
    Ok(())
}

/// Sends a family's queries under the present target and compares.
pub fn run(pair: &PodPair, family: Family, target: &Target, report: &mut Report) -> Result<()> {
    if target.servers.is_none() {
        return Ok(());
    }
    let explainer = Explainer::new(pair.places())?;
    let mut again = Vec::new();
    for (query, oracle, ours) in both(pair, queries(family, target), TIMEOUTS_MS[0])? {
        match evaluate(&explainer, &query.send, pair, [&oracle, &ours]) {
            Ok(difference) => report.passed(difference),
            Err(_) => again.push(query),
        }
    }
    // Connection tracking takes a query for one of an earlier socket that had the same port, and evaluates no rule.
    report.repeated += again.len();
    for (query, oracle, ours) in both(pair, again, TIMEOUTS_MS[1])? {
        match evaluate(&explainer, &query.send, pair, [&oracle, &ours]) {
            Ok(difference) => report.passed(difference),
            Err(answers) => report.failed(&query.name, answers),
        }
    }
    Ok(())
}

/// Long enough for an answer within the machine, and for the second look.
const TIMEOUTS_MS: [u64; 2] = [250, 1_500];

/// Sends queries in both pods, at the same time.
fn both(
    pair: &PodPair,
    queries: Vec<Query>,
    timeout_ms: u64,
) -> Result<Vec<(Query, Outcome, Outcome)>> {
    let outcomes = |client: &Actor| -> Result<Vec<Outcome>> {
        let all = queries.iter().map(|query| query.send.clone()).collect();
        let outcomes = client.send_together(all, timeout_ms)?;
        Ok(outcomes.into_iter().map(without_port).collect())
    };
    let (oracle, ours) = thread::scope(|scope| {
        let oracle = scope.spawn(|| outcomes(&pair.oracle.client));
        let ours = outcomes(&pair.ours.client)?;
        let oracle = oracle.join();
        let oracle = oracle.map_err(|_| anyhow!("the oracle's thread panicked"))??;
        anyhow::Ok((oracle, ours))
    })?;
    let outcomes = oracle.into_iter().zip(ours);
    Ok(queries
        .into_iter()
        .zip(outcomes)
        .map(|(query, (oracle, ours))| (query, oracle, ours))
        .collect())
}

/// Whether both did the same, with the name of a wanted difference, and explain says so; otherwise
/// what each did.
fn evaluate(
    explainer: &Explainer,
    send: &SendUdp,
    pair: &PodPair,
    [oracle, ours]: [&Outcome; 2],
) -> Result<Option<&'static str>, [(&'static str, String); 3]> {
    let verdict = explainer.datagram(send).verdict;
    if oracle != ours
        && let Some(profile) = pair.profile
        && let Some(difference) = known_under(profile, verdict, oracle, ours)
    {
        return Ok(Some(difference));
    }
    // The decision does not say what a filter or the way back does with packets.
    let is_lost = |profile: &Profile| match ours {
        Err(libc::EAGAIN) => true,
        Err(libc::EADDRNOTAVAIL) => profile.known.contains(&Known::WithoutV6),
        _ => false,
    };
    let is_lost = oracle == ours && pair.profile.is_some_and(is_lost);
    let has_agreed = agrees(send, verdict, ours) || is_lost;
    if has_agreed && oracle == ours {
        return Ok(None);
    }
    let difference = has_agreed.then(|| wanted_difference(oracle, ours));
    difference.flatten().map(Some).ok_or_else(|| {
        [
            ("explain", format!("{verdict:?}")),
            ("iptables", format!("{oracle:?}")),
            ("sidetrack", format!("{ours:?}")),
        ]
    })
}

/// By every creator to every server, and from every source.
fn queries(family: Family, target: &Target) -> Vec<Query> {
    let is_v6 = family == Family::V6;
    let of_family = |text: &&str| ip(text).is_ipv6() == is_v6;
    let inside: Vec<&str> = INSIDE.into_iter().filter(of_family).collect();
    let servers: Vec<&str> = inside
        .iter()
        .copied()
        .chain(OUTSIDE.into_iter().filter(of_family))
        .collect();
    let mut queries = Vec::new();
    for (who, sender, connector) in creators(target, &target.proxy()) {
        if connector.is_some() {
            continue;
        }
        let mut ask = |server: &str, port: u16, source: Option<&str>| {
            for connected in [true, false] {
                let manner = if connected {
                    "connected"
                } else {
                    "unconnected"
                };
                let from = source.map(|source| format!(" from {source}"));
                let destination = SocketAddr::new(ip(server), port);
                queries.push(Query {
                    name: format!(
                        "{who}, UDP {manner}{} to {destination}",
                        from.unwrap_or_default()
                    ),
                    send: SendUdp {
                        sender: sender.clone(),
                        destination,
                        source: source.map(|source| SocketAddr::new(ip(source), 0)),
                        connected,
                    },
                });
            }
        };
        for server in &servers {
            for port in PORTS {
                ask(server, port, None);
            }
            if !is_v6 {
                ask(&format!("::ffff:{server}"), PORTS[0], None);
            }
            for source in &inside {
                // No answer finds its way to a loopback address from elsewhere.
                if !ip(source).is_loopback() {
                    ask(server, PORTS[0], Some(source));
                }
            }
        }
    }
    queries
}

/// The kernel picks the sender's port, and address translation may pick another.
fn without_port(mut outcome: Outcome) -> Outcome {
    if let Ok(answer) = &mut outcome {
        answer.sender.set_port(0);
    }
    outcome
}

/// Whether the kernel did what the verdict says.
fn agrees(send: &SendUdp, verdict: Verdict, outcome: &Outcome) -> bool {
    match (verdict, outcome) {
        (Verdict::Fail { errno }, Err(seen)) => errno == *seen,
        (Verdict::Redirect { port, .. }, Ok(answer)) => answer.answered_by.port() == port,
        (Verdict::Untouched, Ok(answer)) => {
            let to = send.destination;
            answer.answered_by == SocketAddr::new(to.ip().to_canonical(), to.port())
        }
        (Verdict::Untouched, Err(_)) => true,
        _ => false,
    }
}

/// The name of a difference that a profile's settings cause.
fn known_under(
    profile: &Profile,
    verdict: Verdict,
    oracle: &Outcome,
    ours: &Outcome,
) -> Option<&'static str> {
    let has = |known| profile.known.contains(&known);
    let is_refused = *ours == Err(libc::ENETUNREACH);
    if has(Known::ChosenSource) && oracle.is_ok() && is_refused {
        return Some(CHOSEN_SOURCE);
    }
    if has(Known::WithoutV6) && *oracle == Err(libc::EADDRNOTAVAIL) && is_refused {
        return Some(WITHOUT_V6);
    }
    let lacks_answer = |outcome: &Outcome| *outcome == Err(libc::EAGAIN);
    let has_rules = [
        Known::FilteredInbound,
        Known::FilteredTargets,
        Known::Translated,
    ];
    if !profile.known.iter().any(|known| has_rules.contains(known)) {
        return None;
    }
    // The machine has no such port, and hosts limit how many errors they send.
    let is_unanswered =
        |outcome: &Outcome| lacks_answer(outcome) || *outcome == Err(libc::ECONNREFUSED);
    if has(Known::Translated)
        && verdict == Verdict::Untouched
        && is_unanswered(oracle)
        && is_unanswered(ours)
    {
        return Some("UDP to a closed port of the machine: an ICMP error or none, by chance");
    }
    // The rules for DNS put a query and its answer into two zones of connection tracking.
    if verdict == Verdict::Untouched && lacks_answer(oracle) && ours.is_ok() {
        return Some(
            "DNS query of the proxy in a pod with rules of its own: its answer is a new connection under iptables, dropped or translated; answered",
        );
    }
    let is_filtered = has(Known::FilteredTargets);
    let is_redirected = matches!(verdict, Verdict::Redirect { .. });
    if is_filtered && is_redirected && lacks_answer(oracle) && ours.is_ok() {
        return Some(
            "a filter of the pod that accepts 127.0.0.1 and ::1: drops the sidecar's answer to another address of the pod under iptables, answered",
        );
    }
    let is_captured = matches!(oracle, Ok(answer) if CAPTURE.contains(&answer.answered_by.port()));
    (is_filtered && is_captured && lacks_answer(ours)).then_some(
        "a filter of the pod that accepts 127.0.0.1 and ::1: lets captured queries in under iptables, drops targets",
    )
}

/// The name of a difference that is there on purpose: the sidecar sees another client, and nothing else differs.
fn wanted_difference(oracle: &Outcome, ours: &Outcome) -> Option<&'static str> {
    let (Ok(oracle), Ok(ours)) = (oracle, ours) else {
        return None;
    };
    let mut wanted = oracle.clone();
    wanted.sender = ours.sender;
    if wanted != *ours || !CAPTURE.contains(&ours.answered_by.port()) {
        return None;
    }
    let client = ours.sender.ip();
    if client.is_loopback() || is_dedicated(client.into()) {
        return Some(
            "DNS query over UDP: the sidecar sees the pod's address under iptables, a loopback address or a target",
        );
    }
    None
}
