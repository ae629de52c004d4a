//! Connection counters: what the kernel counted, by pod and in total.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    time::{Duration, Instant},
};

use sidetrack_common::{conn::CountKey, rule::Rule};

use crate::{
    api::{Connections, PodStatus},
    kernel::maps::Maps,
};

/// Connections by rule. They never decrease, although a pod's counters leave with the pod.
#[derive(Debug, Default)]
pub struct Totals {
    last: HashMap<CountKey, u64>,
    by_rule: BTreeMap<&'static str, u64>,
    counted: Option<Instant>,
}

impl Totals {
    /// Adds what the kernel counted since the last call.
    pub fn add(&mut self, counters: Vec<(CountKey, u64)>) {
        for (key, count) in &counters {
            let before = self.last.get(key).copied().unwrap_or_default();
            // Fewer than before: the pod left and came back.
            let more = count.checked_sub(before).unwrap_or(*count);
            if let Some(rule) = Rule::from_number(key.rule) {
                *self.by_rule.entry(rule.name()).or_default() += more;
            }
        }
        self.last = counters.into_iter().collect();
        self.counted = Some(Instant::now());
    }

    /// By the rule's name.
    #[must_use]
    pub fn by_rule(&self) -> &BTreeMap<&'static str, u64> {
        &self.by_rule
    }

    /// Whether the last count is at most this old.
    #[must_use]
    pub fn is_fresh(&self, age: Duration) -> bool {
        self.counted.is_some_and(|at| at.elapsed() < age)
    }
}

/// Adds listeners and connection counts from the kernel's maps to pods.
///
/// # Errors
/// If the maps cannot be read.
pub fn add_live_facts(pods: &mut [PodStatus], maps: &Maps) -> io::Result<()> {
    let listening = maps.listeners.keys()?;
    let passing = maps.before_sidecar.keys()?;
    let mut counts: HashMap<u64, Connections> = HashMap::new();
    for (key, count) in maps.counts.sums()? {
        add_count(counts.entry(key.netns).or_default(), &key, count);
    }
    for pod in pods {
        let Some(netns) = &pod.netns else { continue };
        let policy = pod.policy_id.map(|id| maps.policies.get(&id)).transpose()?;
        let port = policy.flatten().map(|policy| policy.inbound_port);
        pod.before_sidecar = passing.contains(&netns.cookie);
        pod.listener = listening
            .iter()
            .any(|key| key.netns == netns.cookie && port == Some(key.port));
        pod.connections = counts.get(&netns.cookie).copied().unwrap_or_default();
    }
    Ok(())
}

fn add_count(connections: &mut Connections, key: &CountKey, count: u64) {
    let field = match Rule::from_number(key.rule) {
        Some(
            Rule::ProxyUidLocal
            | Rule::ProxyGidLocal
            | Rule::LocalCaptured
            | Rule::OutPortIncluded
            | Rule::AllOutbound
            | Rule::RangeIncluded,
        ) => &mut connections.outbound_redirected,
        Some(Rule::AllInbound | Rule::InPortIncluded | Rule::VirtualInterface) => {
            &mut connections.inbound_redirected
        }
        Some(Rule::Udp) => &mut connections.udp,
        Some(Rule::BeforeSidecar) => &mut connections.before_sidecar,
        Some(
            Rule::NoRoute
            | Rule::NoPolicy
            | Rule::NoStorage
            | Rule::HandshakesFull
            | Rule::NoListener
            | Rule::BoundDevice
            | Rule::TooManyAddresses
            | Rule::RoutingHeader
            | Rule::UnknownTarget,
        ) => &mut connections.refused,
        _ => &mut connections.untouched,
    };
    *field += count;
}

#[cfg(test)]
mod tests {
    use sidetrack_common::{conn::CountKey, rule::Rule};

    use super::Totals;

    fn counter(netns: u64, count: u64) -> (CountKey, u64) {
        let key = CountKey {
            netns,
            rule: Rule::AllOutbound as u32,
            ..bytemuck::Zeroable::zeroed()
        };
        (key, count)
    }

    #[test]
    fn totals_never_decrease() {
        let name = Rule::AllOutbound.name();
        let mut totals = Totals::default();
        totals.add(vec![counter(1, 5), counter(2, 7)]);
        assert_eq!(totals.by_rule()[name], 12);
        totals.add(vec![counter(1, 5), counter(2, 7)]);
        assert_eq!(totals.by_rule()[name], 12, "a second look adds nothing");
        totals.add(vec![counter(1, 6)]);
        assert_eq!(totals.by_rule()[name], 13, "a pod has left");
        totals.add(vec![counter(1, 2), counter(2, 1)]);
        assert_eq!(totals.by_rule()[name], 16, "both have come anew");
    }
}
