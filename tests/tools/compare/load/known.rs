//! What the load has to be counted as, and whether it was.

use std::collections::{BTreeMap, BTreeSet};

use lab::trace::Shown;
use sidetrack_common::{
    decide::{Decision, Verdict},
    rule::{Class, Rule},
};

use super::reading::{Line, Reading};
use crate::report::{Report, RuleCounts};

/// The connections of a load by what decides them.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// By rule and position: each counts once.
    decided: BTreeMap<(u32, u32), u64>,
    /// Those that a rule redirected, and no sidecar took: they count under this rule as well.
    refused: BTreeMap<u32, u64>,
}

impl Known {
    /// So many connections with this decision.
    pub(super) fn add(&mut self, decision: &Decision, times: usize) {
        let key = (decision.rule as u32, decision.index);
        *self.decided.entry(key).or_default() += times as u64;
    }

    /// The same, while the sidecar is down.
    pub(super) fn add_refused(&mut self, decision: &Decision, times: usize, inbound: bool) {
        self.add(decision, times);
        if matches!(decision.verdict, Verdict::Redirect { .. }) {
            let rule = match inbound {
                true => Rule::NoListener,
                false => Rule::SidecarRefused,
            };
            *self.refused.entry(rule as u32).or_default() += times as u64;
        }
    }

    /// What the trace shows of them: one event each, and one for each that was refused after its redirect.
    pub(super) fn events(&self) -> u64 {
        self.decided.values().chain(self.refused.values()).sum()
    }

    fn rules(&self) -> impl Iterator<Item = (Rule, u64)> {
        let decided = self.decided.iter();
        let decided = decided.map(|((rule, _), count)| (*rule, *count));
        let refused = self.refused.iter().map(|(rule, count)| (*rule, *count));
        let all = decided.chain(refused);
        all.filter_map(|(rule, count)| Some((Rule::from_number(rule)?, count)))
    }

    fn of(&self, rule: Rule) -> u64 {
        let all = self.rules().filter(|(it, _)| *it == rule);
        all.map(|(_, count)| count).sum()
    }

    /// Reports what disagrees.
    pub(super) fn check(&self, counted: &Reading, traced: &Shown, report: &mut Report) {
        for at in 0..counted.lines.len() {
            self.check_line(at, &counted.lines, report);
        }
        let results = self.results();
        equal(
            "sidetrack_pod_connections_total",
            &results,
            &counted.results,
            report,
        );
        equal("sidetrack pods", &self.shown(), &counted.pod, report);
        let mut names: BTreeSet<String> = self
            .rules()
            .map(|(rule, _)| rule.name().to_owned())
            .collect();
        names.extend(counted.metrics.keys().chain(traced.by_rule.keys()).cloned());
        names.extend(counted.reasons.keys().cloned());
        let missing = self.events().saturating_sub(traced.events());
        for name in names {
            let of_rule = |line: &&Line| line.decision.map(|(rule, _)| rule.name()) == Some(&*name);
            let lines: Vec<&Line> = counted.lines.iter().filter(of_rule).collect();
            let of =
                |counts: &BTreeMap<String, u64>| counts.get(&name).copied().unwrap_or_default();
            let made = Rule::from_name(&name).map_or(0, |rule| self.of(rule));
            let traced_here = of(&traced.by_rule);
            report.rule(
                &name,
                &RuleCounts {
                    made,
                    iptables: (!lines.is_empty())
                        .then(|| lines.iter().map(|line| line.packets).sum()),
                    rules: of(&counted.reasons)
                        + lines.iter().map(|line| line.connections).sum::<u64>(),
                    trace: traced_here,
                    metrics: of(&counted.metrics),
                },
                // What the trace says it has lost may be of any rule.
                traced_here <= made && missing == traced.lost,
            );
        }
        report.lost(traced.lost);
    }

    /// A line has counted what it has decided; one that only leads to a chain, everything that has entered it.
    fn check_line(&self, at: usize, all: &[Line], report: &mut Report) {
        let line = &all[at];
        let made = match line.decision {
            Some((rule, index)) => self
                .decided
                .get(&(rule as u32, index))
                .copied()
                .unwrap_or_default(),
            None => self.entering(at, all),
        };
        let shown = line.decision.map_or(made, |_| line.connections);
        if [line.packets, shown] != [made; 2] {
            let answers = [("made", made), ("iptables", line.packets), ("rules", shown)];
            report.failed(
                &line.text,
                answers.map(|(who, count)| (who, count.to_string())),
            );
        }
    }

    /// What a line counts that leads to a chain: everything that is decided there or later.
    fn entering(&self, at: usize, all: &[Line]) -> u64 {
        let line = &all[at];
        if line.target() == "RETURN" {
            // The proxy's queries, until the current dialect: the load has none there.
            return 0;
        }
        if line.target() == "REDIRECT" {
            // What it counts has entered its own chain.
            let leads_here = all.iter().filter(|other| other.target() == line.chain);
            return self.decided_by(leads_here);
        }
        let mut chains = BTreeSet::from([line.target()]);
        for other in all.iter().filter(|other| other.decision.is_none()) {
            if chains.contains(other.chain) {
                chains.insert(other.target());
            }
        }
        let other_protocol = match line.text.contains("-p tcp") {
            true => Some("-p udp"),
            false => line.text.contains("-p udp").then_some("-p tcp"),
        };
        let passes = all.iter().enumerate().filter(|(place, other)| {
            let is_later = other.chain == line.chain && *place > at;
            let is_other_protocol = other_protocol.is_some_and(|it| other.text.contains(it));
            (is_later || chains.contains(other.chain)) && !is_other_protocol
        });
        let mut sum = self.decided_by(passes.map(|(_, other)| other));
        chains.insert(line.chain);
        let leads_to = |names: [&str; 3]| names.iter().any(|name| chains.contains(name));
        if leads_to(["ISTIO_INBOUND", "KUMA_MESH_INBOUND", "PROXY_INIT_REDIRECT"]) {
            sum += self.of(Rule::InNoMatch);
        }
        if leads_to(["ISTIO_OUTPUT", "KUMA_MESH_OUTBOUND", "PROXY_INIT_OUTPUT"]) {
            sum += self.of(Rule::OutNoMatch);
        }
        sum
    }

    fn decided_by<'a>(&self, lines: impl Iterator<Item = &'a Line>) -> u64 {
        let decisions: BTreeSet<_> = lines
            .filter_map(|line| line.decision)
            .map(|(rule, index)| (rule as u32, index))
            .collect();
        let counts = decisions.iter().map(|key| self.decided.get(key));
        counts.flatten().sum()
    }

    /// `sidetrack_pod_connections_total`: what was redirected stays counted as such.
    fn results(&self) -> BTreeMap<String, u64> {
        self.sums(|rule| {
            Some(match rule.class() {
                Class::Outbound => "outbound-redirected",
                Class::Inbound => "inbound-redirected",
                Class::Untouched => "untouched",
                Class::Refused | Class::Failed => "refused",
                _ => return None,
            })
        })
    }

    /// `sidetrack pods`: every connection once.
    fn shown(&self) -> BTreeMap<String, u64> {
        let mut sums = self.sums(|rule| {
            Some(match rule.class() {
                Class::Outbound => "outbound_redirected",
                Class::Inbound => "inbound_redirected",
                Class::Untouched => "untouched",
                Class::Refused | Class::Failed => "refused",
                _ => return None,
            })
        });
        for (name, lost) in [
            ("outbound_redirected", Rule::SidecarRefused),
            ("inbound_redirected", Rule::NoListener),
        ] {
            if let Some(sum) = sums.get_mut(name) {
                *sum -= self.of(lost);
            }
        }
        sums.retain(|_, sum| *sum > 0);
        sums
    }

    fn sums(&self, name: impl Fn(Rule) -> Option<&'static str>) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for (rule, count) in self.rules() {
            if let Some(name) = name(rule) {
                *sums.entry(name.to_owned()).or_default() += count;
            }
        }
        sums
    }
}

fn equal(
    what: &str,
    made: &BTreeMap<String, u64>,
    shown: &BTreeMap<String, u64>,
    report: &mut Report,
) {
    if made != shown {
        report.failed(
            what,
            [
                ("made", format!("{made:?}")),
                ("shown", format!("{shown:?}")),
            ],
        );
    }
}
