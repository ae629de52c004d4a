//! A known load, and everything that counts it: the rules' counters in iptables, those of sidetrack, the trace and
//! the metrics have to agree to the connection.

mod known;
mod queries;
mod reading;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Result, anyhow};
use lab::{
    protocol::{APP, Dial, ROOT},
    trace::Trace,
    udp::SendUdp,
};
use sidetrack_common::{decide::Decision, rule::Rule};

use self::{known::Known, reading::Reading};
use crate::{
    explain::Explainer,
    matrix::{Case, Family, dial, ip},
    pair::{PairedPod, PodPair},
    report::Report,
    target::Target,
};

/// Connections of the kind that is made least often. Every kind has another number, so that no two can be mistaken
/// for each other.
const FEWEST: usize = 8;

/// For the trace's last events to arrive.
const TRACED_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes the load of a family under the present target, with a sidecar and without one, and compares what was counted.
pub fn run(pair: &mut PodPair, family: Family, target: &Target, report: &mut Report) -> Result<()> {
    if queries::are_counted_elsewhere(target) {
        return Ok(());
    }
    let explainer = Explainer::new(pair.places())?;
    let mut known = Known::default();
    let mut cases = cases(family, target);
    // No packet is sent: iptables cannot count what it would leave alone.
    cases.retain(|case| {
        let has_route = case.dial.destination.ip() != nowhere(family);
        has_route || explainer.decision(case).rule == Rule::NoRoute
    });
    let queries = queries::kinds(family, target, &explainer);
    let kinds = numbered(cases.into_iter().map(connection).chain(queries));
    for (what, times) in &kinds {
        known.add(&what.decision(&explainer), *times);
    }
    part(pair, family, target, &kinds, &known, report)?;

    pair.close_sidecars(target)?;
    let mut known = Known::default();
    let kinds = numbered(without_sidecar(family).into_iter().map(connection));
    for (what, times) in &kinds {
        known.add_refused(&what.decision(&explainer), *times, what.is_inbound());
    }
    part(pair, family, target, &kinds, &known, report)?;
    pair.open_sidecars(target)
}

/// What is made.
#[derive(Clone)]
enum What {
    Connection(Box<Case>),
    Query(SendUdp),
}

fn connection(case: Case) -> What {
    What::Connection(Box::new(case))
}

impl What {
    fn decision(&self, explainer: &Explainer) -> Decision {
        match self {
            Self::Connection(case) => explainer.decision(case),
            Self::Query(send) => explainer.datagram(send),
        }
    }

    fn is_inbound(&self) -> bool {
        matches!(self, Self::Connection(case) if case.arrives_by.is_some())
    }

    fn name(&self) -> String {
        match self {
            Self::Connection(case) => case.name.clone(),
            Self::Query(send) => queries::name(send),
        }
    }
}

/// A kind of connection or query, and how many of it are made.
type Kind = (What, usize);

/// Makes connections, and compares what was counted.
fn part(
    pair: &PodPair,
    family: Family,
    target: &Target,
    kinds: &[Kind],
    known: &Known,
    report: &mut Report,
) -> Result<()> {
    let policy = &target.policy;
    let before = Reading::before(pair, family, policy)?;
    let trace = Trace::start(pair.places(), &["test/app"], pair.ours.dir())?;
    let (twin, ours) = thread::scope(|scope| {
        let twin = scope.spawn(|| make(&pair.oracle, kinds));
        let ours = make(&pair.ours, kinds)?;
        let twin = twin.join();
        anyhow::Ok((
            twin.map_err(|_| anyhow!("the twin's thread panicked"))??,
            ours,
        ))
    })?;
    trace.wait(known.events(), TRACED_TIMEOUT)?;
    // For events that should not be there.
    sleep(Duration::from_millis(100));
    let traced = trace.end()?;
    let after = Reading::after(pair, family, policy, &before, known)?;
    report.loaded(kinds.iter().map(|(_, times)| times).sum());
    for (((what, _), twin), ours) in kinds.iter().zip(twin).zip(ours) {
        if twin != ours {
            let answers = [("iptables", twin), ("sidetrack", ours)];
            report.failed(
                &what.name(),
                answers.map(|(who, results)| (who, format!("{results:?}"))),
            );
        }
    }
    known.check(&after.since(&before), &traced, report);
    Ok(())
}

/// Makes every connection; answers how many of each result each kind had.
fn make(pod: &PairedPod, kinds: &[Kind]) -> Result<Vec<BTreeMap<Option<i32>, usize>>> {
    kinds
        .iter()
        .map(|(what, times)| {
            let results = match what {
                What::Connection(case) => {
                    let actor = match case.arrives_by {
                        None => &pod.client,
                        Some(_) => &pod.outside,
                    };
                    let made = actor.dial_all(vec![case.dial.clone(); *times])?;
                    made.into_iter().map(Result::err).collect()
                }
                What::Query(send) => queries::send(&pod.client, send, *times)?,
            };
            let mut counts = BTreeMap::new();
            for result in results {
                *counts.entry(result).or_default() += 1;
            }
            Ok(counts)
        })
        .collect()
}

fn numbered(all: impl Iterator<Item = What>) -> Vec<Kind> {
    all.zip(FEWEST..).collect()
}

/// An address without a route.
fn nowhere(family: Family) -> IpAddr {
    ip(match family {
        Family::V4 => "203.0.113.1",
        Family::V6 => "2001:db8::1",
    })
}

/// Every kind of connection that the rules distinguish.
fn cases(family: Family, target: &Target) -> Vec<Case> {
    let to = family.addresses();
    let proxy = target.proxy();
    let (listed, beside) = match family {
        Family::V4 => ("10.109.120.1", "10.78.0.254"),
        Family::V6 => ("fd99:120::1", "fd78::fe"),
    };
    let mut group = APP;
    group.gid = 2000;
    let mut proxy_group = APP;
    proxy_group.gid = proxy.gid;
    let mut cases: Vec<Case> = [
        ("app", &APP, to.service, 80),
        ("app", &APP, to.service, 22),
        ("app", &APP, to.service, 53),
        ("app", &APP, to.gateway, 80),
        ("app", &APP, listed, 80),
        ("app", &APP, to.loopback, 80),
        ("app", &APP, to.own, 80),
        ("app", &APP, beside, 80),
        ("proxy", &proxy, to.service, 80),
        ("proxy", &proxy, to.own, 80),
        ("proxy", &proxy, to.loopback, 80),
        ("proxy's gid", &proxy_group, to.service, 80),
        ("gid 2000", &group, to.service, 80),
    ]
    .map(|(who, creator, to, port)| Case::outbound(who, dial(creator, ip(to), port)))
    .into();
    cases.push(Case::outbound("app", dial(&APP, nowhere(family), 80)));
    let mut from_self = dial(&proxy, ip(to.own), 80);
    from_self.source = Some(std::net::SocketAddr::new(ip(to.own_self), 0));
    cases.push(Case::outbound("proxy", from_self));
    cases.extend([80, 22, 53, 15008, 15021].map(|port| inbound(to.own, port)));
    let mut by_eth1 = dial(&ROOT, ip(to.second), 80);
    by_eth1.device = Some(lab::network::BESIDE.to_owned());
    cases.push(Case::inbound(by_eth1));
    cases
}

/// Those that a sidecar that is down refuses, and one that needs none.
fn without_sidecar(family: Family) -> Vec<Case> {
    let to = family.addresses();
    let out = |to: &str| Case::outbound("app", dial(&APP, ip(to), 80));
    vec![
        out(to.service),
        inbound(to.own, 80),
        inbound(to.own, 22),
        out(to.loopback),
    ]
}

fn inbound(to: &str, port: u16) -> Case {
    let dial: Dial = dial(&ROOT, ip(to), port);
    Case::inbound(dial)
}
