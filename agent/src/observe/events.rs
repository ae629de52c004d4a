//! Events of the kernel programs in people's words.

use std::time::{Duration, SystemTime};

use sidetrack_common::{
    addr::Addr,
    event::{Event, EventKind},
    policy::NO_ID,
    rule::{Class, Rule},
};
use sidetrack_policy::text::printable;

use crate::api::{Process, TraceEvent};
use sidetrack_datapath::kernel::events::boot_time;

/// The clocks at one moment: events carry the time since boot.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    boot: u64,
    wall: SystemTime,
}

impl Clocks {
    /// As they are now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            boot: boot_time(),
            wall: SystemTime::now(),
        }
    }

    /// How long ago a moment was, in nanoseconds since boot.
    #[must_use]
    pub fn since(&self, at: u64) -> Duration {
        Duration::from_nanos(self.boot.saturating_sub(at))
    }

    /// A moment, in nanoseconds since boot; one that is still to come is now.
    #[must_use]
    pub fn at(&self, wall: SystemTime) -> u64 {
        let ago = self.wall.duration_since(wall).unwrap_or_default();
        let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        self.boot.saturating_sub(ago)
    }

    fn text(&self, at: u64) -> String {
        let wall = self.wall.checked_sub(self.since(at));
        let wall = wall.unwrap_or(SystemTime::UNIX_EPOCH);
        humantime::format_rfc3339_micros(wall).to_string()
    }
}

/// What an event says. `pod` is the name of its pod.
#[must_use]
pub fn described(event: &Event, pod: String, clocks: &Clocks) -> TraceEvent {
    let rule = Rule::from_number(event.rule);
    let kind = EventKind::from_number(event.kind);
    let is_known = |port: u16| (port != 0).then_some(port);
    TraceEvent {
        time: clocks.text(event.at),
        pod,
        direction: match kind {
            Some(EventKind::Inbound) => "inbound",
            Some(EventKind::Outbound | EventKind::Outcome) | None => "outbound",
        }
        .to_owned(),
        verdict: verdict(event, kind).to_owned(),
        source: source(event),
        destination: endpoint(event.destination, event.destination_port),
        port: is_known(event.capture_port),
        rule: rule.map_or_else(
            || format!("rule {}", event.rule),
            |rule| rule.name().to_owned(),
        ),
        errno: (event.errno != 0).then_some(event.errno),
        process: process(event),
        socket: (event.cookie != 0).then_some(event.cookie),
    }
}

/// Whether the rule with this name refuses connections.
#[must_use]
pub fn is_refusal(rule: &str) -> bool {
    Rule::from_name(rule).is_some_and(|rule| rule.class().is_refusal())
}

fn verdict(event: &Event, kind: Option<EventKind>) -> &'static str {
    let class = Rule::from_number(event.rule).map(Rule::class);
    match (kind, class) {
        (_, Some(Class::GivenUp)) => "given-up",
        (Some(EventKind::Outcome), _) => "failed",
        _ if event.errno != 0 => "refuse",
        _ if event.capture_port != 0 => "redirect",
        _ => "untouched",
    }
}

fn source(event: &Event) -> Option<String> {
    let has_address = !event.source.is_unspecified();
    match (has_address, event.source_port) {
        (true, 0) => Some(event.source.to_string()),
        (true, port) => Some(endpoint(event.source, port)),
        (false, 0) => None,
        (false, port) => Some(format!("*:{port}")),
    }
}

fn endpoint(addr: Addr, port: u16) -> String {
    std::net::SocketAddr::new(addr.into(), port).to_string()
}

fn process(event: &Event) -> Option<Process> {
    let is_known = |id: u32| (id != NO_ID).then_some(id);
    let end = event.comm.iter().position(|byte| *byte == 0);
    let name = &event.comm[..end.unwrap_or(event.comm.len())];
    (event.pid != 0).then(|| Process {
        pid: event.pid,
        name: printable(&String::from_utf8_lossy(name)),
        uid: is_known(event.uid),
        gid: is_known(event.gid),
    })
}

#[cfg(test)]
mod tests;
