//! Which events a client wants.

use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::api::{Process, TraceEvent, TraceLine};
use crate::observe::events::is_refusal;

/// Which events a client wants: those that fit everything it names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// `namespace/name`.
    pub pod: Option<String>,
    /// Kubernetes namespace.
    pub namespace: Option<String>,
    /// See [`TraceEvent::direction`].
    pub direction: Option<String>,
    /// See [`TraceEvent::verdict`].
    pub verdict: Option<String>,
    /// Only connections that were refused, or redirected to a sidecar that did not accept them.
    pub refused: bool,
    /// See [`TraceEvent::rule`].
    pub rule: Option<String>,
    /// The dialed port.
    pub port: Option<u16>,
    /// The dialed address, or the client's.
    pub address: Option<IpNet>,
    /// A process id, or a name.
    pub process: Option<String>,
}

impl Filter {
    /// Whether a client wants a line. A loss it always wants to know.
    #[must_use]
    pub fn wants(&self, line: &TraceLine) -> bool {
        match line {
            TraceLine::Lost(_) => true,
            TraceLine::Event(event) => self.fits(event),
        }
    }

    fn fits(&self, event: &TraceEvent) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == value)
        };
        let namespace = event
            .pod
            .split_once('/')
            .map_or("", |(namespace, _)| namespace);
        is(&self.pod, &event.pod)
            && is(&self.namespace, namespace)
            && is(&self.direction, &event.direction)
            && is(&self.verdict, &event.verdict)
            && is(&self.rule, &event.rule)
            && (!self.refused || is_refusal(&event.rule))
            && self.has_endpoint(event)
            && self.is_of_process(event.process.as_ref())
    }

    fn has_endpoint(&self, event: &TraceEvent) -> bool {
        let destination: Option<SocketAddr> = event.destination.parse().ok();
        let port = destination.map(|end| end.port());
        // Before the kernel has chosen a port for it, the source is an address alone.
        let source = event.source.as_deref().and_then(|text| {
            let end = text.parse::<SocketAddr>().map(|end| end.ip());
            end.or_else(|_| text.parse()).ok()
        });
        let mut ends = [destination.map(|end| end.ip()), source]
            .into_iter()
            .flatten();
        (self.port.is_none() || self.port == port)
            && self
                .address
                .is_none_or(|wanted| ends.any(|end| wanted.contains(&end)))
    }

    fn is_of_process(&self, process: Option<&Process>) -> bool {
        let Some(wanted) = &self.process else {
            return true;
        };
        process.is_some_and(|process| *wanted == process.name || wanted.parse() == Ok(process.pid))
    }
}

#[cfg(test)]
mod tests;
