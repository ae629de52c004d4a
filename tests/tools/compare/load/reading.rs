//! Every counter there is, at one moment.

use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lab::{
    command::run,
    product::{
        Policy,
        rules::{self, TableName},
    },
};
use serde_json::Value;
use sidetrack_common::rule::Rule;

use super::known::Known;
use crate::{matrix::Family, pair::PodPair};

/// How long metrics may take to show the last connections: the agent reads the counters at most once a second, and
/// lists the pods at most every five.
const SHOWN: Duration = Duration::from_secs(8);

/// A line of the rules, in both pods.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Its chain.
    pub(super) chain: &'static str,
    /// As `iptables -S` prints it.
    pub(super) text: String,
    /// The rule and position that it stands for; none if it only leads to another chain.
    pub(super) decision: Option<(Rule, u32)>,
    /// Packets that iptables has counted: the first of each connection.
    pub(super) packets: u64,
    /// Connections that `sidetrack rules` shows.
    pub(super) connections: u64,
}

impl Line {
    /// Where it sends what it matches.
    pub(super) fn target(&self) -> &str {
        let target = self.text.split(" -j ").nth(1);
        target
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_default()
    }
}

/// What was counted.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// The rules.
    pub(super) lines: Vec<Line>,
    /// Reasons that no line stands for, of `sidetrack rules`.
    pub(super) reasons: BTreeMap<String, u64>,
    /// `sidetrack_connections_total`, by rule.
    pub(super) metrics: BTreeMap<String, u64>,
    /// `sidetrack_pod_connections_total`, by result.
    pub(super) results: BTreeMap<String, u64>,
    /// Connections that `sidetrack pods` shows.
    pub(super) pod: BTreeMap<String, u64>,
}

impl Reading {
    /// As it is now.
    pub(super) fn now(pair: &PodPair, family: Family, policy: &Policy) -> Result<Self> {
        let flag: &[&str] = match family {
            Family::V4 => &[],
            Family::V6 => &["-6"],
        };
        let words = [&["rules", "test/app", "-o", "json"], flag].concat();
        let rows = pair.places().json(&words)?;
        let rows = rows.as_array().context("a list of rules")?;
        let shown = rows.iter().filter(|row| row["scope"] == "line");
        let mut packets = packets(&pair.oracle.counters(family)?)?;
        let mut lines = Vec::new();
        for (line, row) in rules::all(policy, family.into()).into_iter().zip(shown) {
            let text = line.command();
            ensure!(
                row["rule"] == *text,
                "`sidetrack rules` has {row} for {text}"
            );
            if line.table != TableName::Nat {
                // They decide nothing, and table raw counts every packet.
                continue;
            }
            let of_chain = packets
                .get_mut(line.chain)
                .filter(|counts| !counts.is_empty());
            lines.push(Line {
                packets: of_chain
                    .with_context(|| format!("iptables lacks {text}"))?
                    .remove(0),
                connections: row["connections"].as_u64().unwrap_or_default(),
                chain: line.chain,
                decision: line.decision,
                text,
            });
        }
        let reasons = rows.iter().filter(|row| row["scope"] == "reason");
        let reasons = reasons.map(|row| Ok((text(&row["name"])?, number(&row["connections"])?)));
        let pod = pair.places().pod("test/app")?.context("the pod")?;
        let pod = pod["connections"].as_object().context("connections")?;
        let pod = pod
            .iter()
            .map(|(name, value)| Ok((name.clone(), number(value)?)));
        let page = run(&format!("curl -sf http://{}/metrics", pair.metrics))?;
        Ok(Self {
            lines,
            reasons: reasons.collect::<Result<_>>()?,
            metrics: series(&page, "sidetrack_connections_total{", "rule")?,
            results: series(&page, "sidetrack_pod_connections_total{", "result")?,
            pod: pod.collect::<Result<_>>()?,
        })
    }

    /// As it is once the metrics are about the pod as it is enrolled now: a page is served for a second.
    pub(super) fn before(pair: &PodPair, family: Family, policy: &Policy) -> Result<Self> {
        let begun = Instant::now();
        loop {
            let now = Self::now(pair, family, policy)?;
            let [shown, counted] = [&now.results, &now.pod].map(|it| it.values().sum::<u64>());
            if shown == 0 || counted > 0 {
                return Ok(now);
            }
            ensure!(
                begun.elapsed() < SHOWN,
                "metrics of an earlier enrollment: {:?}",
                now.results
            );
            sleep(Duration::from_millis(200));
        }
    }

    /// As it is once the metrics show what was made, or when they should.
    pub(super) fn after(
        pair: &PodPair,
        family: Family,
        policy: &Policy,
        before: &Self,
        known: &Known,
    ) -> Result<Self> {
        let begun = Instant::now();
        loop {
            let now = Self::now(pair, family, policy)?;
            let more = now.since(before);
            let shown = [&more.metrics, &more.results].map(|counts| counts.values().sum::<u64>());
            if shown.iter().all(|sum| *sum >= known.events()) || begun.elapsed() > SHOWN {
                return Ok(now);
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// What was added since.
    pub(super) fn since(&self, before: &Self) -> Self {
        let lines = self.lines.iter().zip(&before.lines);
        Self {
            lines: lines
                .map(|(now, before)| Line {
                    packets: now.packets - before.packets,
                    connections: now.connections - before.connections,
                    ..now.clone()
                })
                .collect(),
            reasons: added(&self.reasons, &before.reasons),
            metrics: added(&self.metrics, &before.metrics),
            results: added(&self.results, &before.results),
            pod: added(&self.pod, &before.pod),
        }
    }
}

/// What has become more.
fn added(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let difference = |(name, now): (&String, &u64)| {
        let before = before.get(name).copied().unwrap_or_default();
        (name.clone(), now - before)
    };
    let all = now.iter().map(difference);
    all.filter(|(_, count)| *count > 0).collect()
}

fn text(value: &Value) -> Result<String> {
    value.as_str().map(str::to_owned).context("a text")
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().context("a number")
}

/// Packets of each line by chain, from `iptables -t nat -nvL -x`.
fn packets(listing: &str) -> Result<BTreeMap<String, Vec<u64>>> {
    let mut chains = BTreeMap::new();
    let mut chain = None;
    for line in listing.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Chain"), Some(name)) => {
                chain = Some(chains.entry(name.to_owned()).or_insert_with(Vec::new));
            }
            (Some("pkts"), _) | (None, _) => {}
            (Some(count), _) => {
                let chain = chain.as_mut().context("a line before the first chain")?;
                chain.push(count.parse().with_context(|| line.to_owned())?);
            }
        }
    }
    Ok(chains)
}

/// Values of a metric by one of its labels.
fn series(page: &str, metric: &str, label: &str) -> Result<BTreeMap<String, u64>> {
    let key = format!("{label}=\"");
    let lines = page.lines().filter(|line| line.starts_with(metric));
    lines
        .map(|line| {
            let (labels, value) = line.rsplit_once("} ").context("a value")?;
            let (_, rest) = labels.split_once(&key).context("the label")?;
            let (name, _) = rest.split_once('"').context("the label's end")?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}
