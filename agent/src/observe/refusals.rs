//! Refused connections: the last of each pod and reason, which the kernel programs keep, and what to do about each
//! reason.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    io,
    time::SystemTime,
};

use sidetrack_common::{
    event::{Event, RefusalKey},
    rule::Rule,
};

use crate::api::{Refusals, TraceEvent};
use crate::observe::events::{Clocks, described};
use sidetrack_datapath::kernel::maps::Maps;

/// The last refusal of each pod and reason.
#[derive(Debug)]
pub struct LastRefusals {
    by_pod_and_rule: HashMap<(u64, u32), Event>,
    clocks: Clocks,
}

impl LastRefusals {
    /// As they are now.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn read(maps: &Maps) -> io::Result<Self> {
        let rows = maps.last_refusals.rows()?.into_iter();
        Ok(Self {
            by_pod_and_rule: rows
                // The memory of a row that was removed meanwhile is another's.
                .filter(|(key, event)| event.is_complete() && is_of(key, event))
                .map(|(key, event)| ((key.netns, key.rule), event))
                .collect(),
            clocks: Clocks::now(),
        })
    }

    /// A pod's, the latest first. `counts` says how many there were by rule number.
    #[must_use]
    pub fn of(&self, cookie: u64, counts: &BTreeMap<u32, u64>, pod: &str) -> Vec<Refusals> {
        let mut all: Vec<(Option<u64>, Refusals)> = counts
            .iter()
            .filter_map(|(number, count)| {
                let rule = Rule::from_number(*number)?;
                let last = self.by_pod_and_rule.get(&(cookie, *number));
                let refusals = Refusals {
                    reason: rule.name().to_owned(),
                    count: *count,
                    seconds_ago: last.map(|event| self.clocks.since(event.at).as_secs()),
                    last: last.map(|event| described(event, pod.to_owned(), &self.clocks)),
                };
                Some((last.map(|event| event.at), refusals))
            })
            .collect();
        // Those whose time is not known come last.
        all.sort_by_key(|(at, _)| Reverse(*at));
        all.into_iter().map(|(_, refusals)| refusals).collect()
    }
}

/// What is done about a refusal that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It is reported, of a pod with this name.
    Now(String),
    /// It is still new at the next look.
    Later,
    /// It is not reported.
    Never,
}

/// Finds the pods and reasons that are new.
#[derive(Debug)]
pub struct NewRefusals {
    /// Those that are not new. Of one that was not to be reported, when it was: a later one is new.
    seen: HashMap<(u64, u32), Option<u64>>,
    /// What was refused before is not new. In nanoseconds since boot: the clock may be set meanwhile.
    since: u64,
}

impl NewRefusals {
    /// Of what is refused from now on, and since a moment.
    #[must_use]
    pub fn since(since: SystemTime) -> Self {
        Self {
            seen: HashMap::new(),
            since: Clocks::now().at(since),
        }
    }

    /// The last refusal of each pod and reason that was not there before. `report` says what is done about those of a pod,
    /// by its cookie, and of a rule.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn look(
        &mut self,
        maps: &Maps,
        report: impl Fn(u64, &str) -> Report,
    ) -> io::Result<Vec<TraceEvent>> {
        let clocks = Clocks::now();
        let mut now = HashMap::new();
        let mut new = Vec::new();
        for key in maps.last_refusals.keys()? {
            let row = (key.netns, key.rule);
            let seen = self.seen.get(&row).copied();
            if seen == Some(None) {
                now.insert(row, None);
                continue;
            }
            // One that is just being written, or of a pod that is not known yet, is new at the next look.
            let event = maps.last_refusals.get(&key)?;
            let event = event.filter(|event| event.is_complete() && is_of(&key, event));
            if let Some(Some(at)) = seen
                && event.as_ref().is_none_or(|event| event.at == at)
            {
                now.insert(row, Some(at));
                continue;
            }
            let rule = Rule::from_number(key.rule).map_or("", Rule::name);
            let (event, name) = match (event, report(key.netns, rule)) {
                (None, _) | (_, Report::Later) => continue,
                (Some(event), Report::Never) => {
                    now.insert(row, Some(event.at));
                    continue;
                }
                (Some(event), Report::Now(name)) => (event, name),
            };
            now.insert(row, None);
            if event.at >= self.since {
                new.push(described(&event, name, &clocks));
            }
        }
        self.seen = now;
        new.sort_by(|one, other| one.time.cmp(&other.time));
        Ok(new)
    }
}

/// Whether an event was written for a row: a program may still write into one whose memory has become another's.
fn is_of(key: &RefusalKey, event: &Event) -> bool {
    (key.netns, key.rule) == (event.netns, event.rule)
}

/// What to do about refusals by a rule.
#[must_use]
pub fn cure(rule: Rule) -> &'static str {
    match rule {
        Rule::SidecarRefused | Rule::NoListener => {
            "look whether the container of the sidecar (in Istio istio-proxy) runs and is ready: `kubectl describe pod` shows its state, `kubectl logs POD -c CONTAINER` why it ended"
        }
        Rule::SidecarSilent => {
            "the sidecar runs and does not accept connections: look at its load, and restart the pod if it hangs"
        }
        Rule::HandshakesFull => {
            "the sidecar does not accept connections as fast as they come: look at its load, and restart the pod if it hangs. If `sidetrack status` says that HANDSHAKES is nearly full, it may be another pod's"
        }
        Rule::NoRoute => {
            "the same connection fails without a mesh: look at the pod's routes with `ip route get ADDRESS` in its network namespace"
        }
        Rule::NoPolicy => {
            "restart the agent; if the refusals continue, this is an error of sidetrack: please report it"
        }
        Rule::NoStorage => "the node has too little memory: look at its memory pressure",
        Rule::RecordsFull => {
            "an application holds many sockets open that were redirected without a target of their own (docs/architecture.md), or asks many DNS servers' ports: look for sockets that it does not close. If `sidetrack status` says that RECORD_BY_SOCK is nearly full, it may be another pod's"
        }
        Rule::BoundDevice => {
            "the application binds its sockets to a device (SO_BINDTODEVICE): give it CAP_NET_RAW, or exclude the destination (in Istio by traffic.sidecar.istio.io/excludeOutboundIPRanges)"
        }
        Rule::LoopbackSource => {
            "the application binds its socket to a loopback address and connects to another host: let it bind to no address, or to the pod's"
        }
        Rule::TooManyAddresses => "remove addresses from the pod's interfaces",
        Rule::LinkLocal => {
            "the application dials an address of fe80::/10, which no sidecar can reach for it: exclude the range (in Istio by traffic.sidecar.istio.io/excludeOutboundIPRanges: fe80::/10)"
        }
        Rule::RoutingHeader => {
            "the application sets an IPv6 routing header (IPV6_RTHDR) or an IPv4 source route (IP_OPTIONS) on its sockets: remove that"
        }
        Rule::SocketOption => {
            "the application sets SO_BINDTODEVICE, IP_OPTIONS or IPV6_RTHDR on a connected socket: let it do without, or exclude the destination (in Istio by traffic.sidecar.istio.io/excludeOutboundIPRanges)"
        }
        Rule::UnknownTarget => {
            "another program has changed the connection's addresses after sidetrack redirected it (`sidetrack status` names foreign programs), or the client dialed an address of 127.128.0.0/10 or 100:0:0:1::/64, or bound its socket to one of 127.64.0.0/10: only redirects lead there"
        }
        _ => "see docs/troubleshoot.md",
    }
}

#[cfg(test)]
mod tests;
