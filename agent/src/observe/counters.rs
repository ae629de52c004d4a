//! Connection counters: what the kernel counted, by pod and in total.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
    time::{Duration, Instant},
};

use sidetrack_common::{
    count::{ANY_POLICY, CountKey, EARLIER_POLICIES},
    names::{COUNTER_QUOTA, MPTCP_INBOUND, MPTCP_OUTBOUND},
    rule::{Class, Rule},
};

use crate::api::{Connections, PodStatus, Sidecar};
use crate::observe::{refusals::LastRefusals, sidecars::SidecarSockets};
use sidetrack_datapath::kernel::{connection_counts::RemovedCounts, maps::Maps};
use sidetrack_live::Sockets;

/// Connections by rule. They never decrease, although a pod's counters leave with the pod.
#[derive(Debug, Default)]
pub struct Totals {
    /// What the kernel's counters had when they were read last.
    last: HashMap<CountKey, u64>,
    by_rule: BTreeMap<&'static str, u64>,
    counted: Option<Instant>,
}

impl Totals {
    /// Counts from now on. With what the kernel has counted before it would be less than what the agent before has shown, if a
    /// pod has left since, and Prometheus would take all of it for new.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn from_now(maps: &Maps) -> io::Result<Self> {
        Ok(Self {
            last: maps.connection_counts()?.into_iter().collect(),
            ..Self::default()
        })
    }

    /// Adds what the kernel has counted since the last call.
    ///
    /// # Errors
    /// If the maps cannot be read or written.
    pub fn update(&mut self, maps: &Maps, removed: &RemovedCounts) -> io::Result<()> {
        self.leave_out_removed(removed);
        let counters = maps.connection_counts()?;
        self.add(counters, &removed.take());
        self.add_up_earlier(maps)
    }

    /// Adds what was removed from the kernel since the last call, so that a pod that is enrolled again begins with
    /// nothing.
    pub fn leave_out_removed(&mut self, removed: &RemovedCounts) {
        self.add_removed(&removed.take());
    }

    /// Adds the counters as they were read, and those that were removed meanwhile.
    fn add(&mut self, counters: Vec<(CountKey, u64)>, removed: &[(CountKey, u64)]) {
        let meanwhile: HashSet<CountKey> = removed.iter().map(|(key, _)| *key).collect();
        for (key, count) in counters {
            // Read before its removal or, of a pod that is back, after it: the next call counts it.
            if !meanwhile.contains(&key) {
                self.add_one(&key, count);
                self.last.insert(key, count);
            }
        }
        self.add_removed(removed);
        self.counted = Some(Instant::now());
    }

    fn add_removed(&mut self, removed: &[(CountKey, u64)]) {
        for (key, count) in removed {
            self.add_one(key, *count);
            self.last.remove(key);
        }
    }

    fn add_one(&mut self, key: &CountKey, count: u64) {
        let before = self.last.get(key).copied().unwrap_or_default();
        if let Some(rule) = Rule::from_number(key.rule) {
            *self.by_rule.entry(rule.name()).or_default() += count.saturating_sub(before);
        }
    }

    /// Adds up the counters of policies that pods no longer have: a pod that changes its policy again and again has
    /// the counters of one, and one per rule for all before.
    fn add_up_earlier(&mut self, maps: &Maps) -> io::Result<()> {
        let current: HashMap<u64, u32> = maps
            .pods
            .rows()?
            .into_iter()
            .map(|(cookie, row)| (cookie, row.policy))
            .collect();
        let is_earlier = |key: &&CountKey| {
            let policy = current.get(&key.netns);
            ![EARLIER_POLICIES, ANY_POLICY].contains(&key.policy)
                && policy.is_some_and(|policy| *policy != key.policy)
        };
        let earlier: Vec<CountKey> = self.last.keys().filter(is_earlier).copied().collect();
        let pods: BTreeSet<u64> = earlier.iter().map(|key| key.netns).collect();
        for key in earlier {
            let Some(count) = maps.counts.take(&key)? else {
                continue;
            };
            let sum_key = CountKey {
                policy: EARLIER_POLICIES,
                index: 0,
                ..key
            };
            let sum = maps.counts.get(&sum_key)?.unwrap_or_default() + count;
            maps.counts.insert(&sum_key, &sum)?;
            self.add_one(&key, count);
            self.last.remove(&key);
            self.last.insert(sum_key, sum);
        }
        pods.into_iter()
            .try_for_each(|netns| maps.recount_counters(netns, self.last.keys()))
    }

    /// By the rule's name.
    #[must_use]
    pub fn by_rule(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_rule
    }

    /// Every rule that refuses, with what it has refused. Those with none are there as well: an increase
    /// from nothing to one would not be seen.
    #[must_use]
    pub fn refusals(&self) -> Vec<(&'static str, u64)> {
        let rules = Rule::ALL.iter().filter(|rule| rule.class().is_refusal());
        let count = |name| self.by_rule.get(name).copied().unwrap_or_default();
        rules
            .map(|rule| (rule.name(), count(rule.name())))
            .collect()
    }

    /// What the kernel had counted for each pod at the last call, by network namespace. A redirected
    /// connection that the sidecar refused counts as both: what was counted once stays.
    #[must_use]
    pub fn by_pod(&self) -> HashMap<u64, ByResult> {
        let mut pods: HashMap<u64, ByResult> = HashMap::new();
        for (key, count) in &self.last {
            let class = Rule::from_number(key.rule).map_or(Class::Untouched, Rule::class);
            *pods.entry(key.netns).or_default().of(class) += count;
        }
        pods
    }

    /// Whether the last count is at most this old.
    #[must_use]
    pub fn is_fresh(&self, age: Duration) -> bool {
        self.counted.is_some_and(|at| at.elapsed() < age)
    }
}

/// A pod's connections by what became of them. No count ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByResult([u64; RESULTS.len()]);

/// What becomes of connections, as the label `result`.
const RESULTS: [&str; 7] = [
    "outbound-redirected",
    "inbound-redirected",
    "untouched",
    "before-sidecar",
    "udp",
    "refused",
    "given-up",
];

impl ByResult {
    fn of(&mut self, class: Class) -> &mut u64 {
        &mut self.0[match class {
            Class::Outbound => 0,
            Class::Inbound => 1,
            Class::Untouched => 2,
            Class::BeforeSidecar => 3,
            Class::Udp => 4,
            Class::Refused | Class::Failed => 5,
            Class::GivenUp => 6,
        }]
    }

    /// Every result and its count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RESULTS.into_iter().zip(self.0)
    }
}

/// Adds listeners and connection counts from the kernel's maps to pods. `look` is the last look at their sidecars, if
/// there was one.
///
/// # Errors
/// If the maps cannot be read.
pub fn add_live_facts(
    pods: &mut [PodStatus],
    maps: &Maps,
    look: Option<&SidecarSockets>,
) -> io::Result<()> {
    add_sidecars(pods, maps, look)?;
    let last = LastRefusals::read(maps)?;
    let overflowing = maps.overflow.keys()?;
    let mut counts: HashMap<u64, Tally> = HashMap::new();
    for (key, count) in maps.connection_counts()? {
        counts.entry(key.netns).or_default().add(&key, count);
    }
    for pod in pods {
        let name = pod.full_name();
        let Some(netns) = &pod.netns else { continue };
        if overflowing.contains(&netns.cookie) {
            pod.notes.push(format!(
                "it has no room for more counters, of which a pod may have {COUNTER_QUOTA}: further connections are counted by rule, without the line of the rule in its lists"
            ));
        }
        pod.refusals = counts
            .get(&netns.cookie)
            .map(|tally| last.of(netns.cookie, &tally.refused, &name))
            .unwrap_or_default();
        pod.connections = counts
            .get(&netns.cookie)
            .map_or_else(Connections::default, Tally::connections);
    }
    Ok(())
}

/// Adds what the pods' sidecars do, as far as their listening sockets say.
///
/// # Errors
/// If the maps cannot be read.
pub fn add_sidecars(
    pods: &mut [PodStatus],
    maps: &Maps,
    look: Option<&SidecarSockets>,
) -> io::Result<()> {
    let listening = maps.listeners.keys()?.into_iter();
    let listening: HashSet<_> = listening.map(|key| (key.netns, key.port)).collect();
    let passing = maps.before_sidecar.keys()?;
    let bits: HashMap<u64, u32> = maps.sidecar_bits.rows()?.into_iter().collect();
    for pod in pods {
        let Some(netns) = &pod.netns else { continue };
        let policy = pod.policy_id.map(|id| maps.policies.get(&id)).transpose()?;
        let policy = policy.flatten();
        let seen = bits.get(&netns.cookie).copied().unwrap_or_default();
        let by_mptcp = look.map_or([None; 2], |look| look.listens_with_mptcp(netns.cookie));
        let listens = |port: Option<u16>, bit, by_mptcp| match port {
            Some(port) if listening.contains(&(netns.cookie, port)) => Some(true),
            // No map holds it.
            Some(_) if seen & bit != 0 => by_mptcp,
            _ => Some(false),
        };
        pod.before_sidecar = passing.contains(&netns.cookie);
        let inbound = policy.map(|policy| policy.inbound_port);
        let inbound = listens(inbound, MPTCP_INBOUND, by_mptcp[1]);
        let outbound = policy.map(|policy| policy.outbound_port);
        pod.outbound_listener = listens(outbound, MPTCP_OUTBOUND, by_mptcp[0]);
        pod.listener = inbound;
        pod.dns_listener = look.and_then(|look| look.receives_dns(netns.cookie));
        pod.sidecar = Some(Sidecar::of(&Sockets {
            not_yet: pod.before_sidecar,
            outbound: pod.outbound_listener,
            inbound,
            dns: pod.dns_listener,
            queue: look.and_then(|look| look.queue(netns.cookie)),
        }));
    }
    Ok(())
}

/// What the kernel has counted for a pod.
#[derive(Debug, Default)]
struct Tally {
    by_result: ByResult,
    /// Outbound connections that were redirected, and counted as such, and that the sidecar did not accept.
    not_accepted: u64,
    /// The same of inbound ones: no process listened.
    not_served: u64,
    refused: BTreeMap<u32, u64>,
}

impl Tally {
    fn add(&mut self, key: &CountKey, count: u64) {
        let class = Rule::from_number(key.rule).map_or(Class::Untouched, Rule::class);
        *self.by_result.of(class) += count;
        if class.is_refusal() {
            *self.refused.entry(key.rule).or_default() += count;
        }
        if key.rule == Rule::NoListener as u32 {
            self.not_served += count;
        } else if matches!(class, Class::Failed | Class::GivenUp) {
            self.not_accepted += count;
        }
    }

    fn connections(&self) -> Connections {
        let mut counts = self.by_result;
        let mut of = |class| *counts.of(class);
        Connections {
            outbound_redirected: of(Class::Outbound).saturating_sub(self.not_accepted),
            inbound_redirected: of(Class::Inbound).saturating_sub(self.not_served),
            untouched: of(Class::Untouched),
            before_sidecar: of(Class::BeforeSidecar),
            refused: of(Class::Refused),
            given_up: of(Class::GivenUp),
            udp: of(Class::Udp),
        }
    }
}

#[cfg(test)]
mod tests;
