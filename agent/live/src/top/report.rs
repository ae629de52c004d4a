//! What `top` shows of a node: for programs, and for the view.

use serde::{Deserialize, Serialize};

use crate::Connections;

/// A node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopReport {
    /// Its name.
    pub node: String,
    /// The agent's version, if it answers.
    pub version: Option<String>,
    /// Where the pods are from.
    pub origin: Origin,
    /// Why the agent does not answer.
    pub no_answer: Option<String>,
    /// What is wrong, as sentences.
    #[serde(default)]
    pub problems: Vec<String>,
    /// The time between the two readings of the rates, in seconds.
    pub seconds: Option<f64>,
    /// The pods, without those that sidetrack leaves alone.
    pub pods: Vec<Row>,
}

/// Where pods are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The agent.
    Agent,
    /// The kernel's maps, without an agent.
    PinnedMaps,
    /// No agent answers, and there are no maps.
    Nowhere,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The agent's word for its state.
    pub state: String,
    /// Why, unless it is enrolled without a problem.
    pub reason: Option<String>,
    /// Whether the sidecar listens, in the words of `sidetrack pods`.
    pub sidecar: Option<String>,
    /// Connections that wait for a sidecar that hangs.
    #[serde(default)]
    pub waiting: Option<u64>,
    /// Connections a second; `None` until there are two readings.
    pub per_second: Option<PerSecond>,
    /// Connections since the pod was enrolled.
    pub connections: Option<Connections>,
}

/// Connections a second, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PerSecond {
    /// Outbound, to the sidecar.
    pub outbound_redirected: f64,
    /// Inbound, to the sidecar.
    pub inbound_redirected: f64,
    /// Past the sidecar.
    pub untouched: f64,
    /// Past it because it has never listened.
    pub before_sidecar: f64,
    /// Failed.
    pub refused: f64,
    /// Closed by the application before the sidecar accepted them.
    pub given_up: f64,
    /// UDP sockets.
    pub udp: f64,
}

impl PerSecond {
    /// From counters and the seconds between them. Counts of connections that failed later may decrease.
    pub(super) fn between(before: &Connections, now: &Connections, seconds: f64) -> Self {
        let rate = |of: fn(&Connections) -> u64| {
            // More than 2^53 connections are beyond any node.
            of(now).saturating_sub(of(before)) as f64 / seconds
        };
        Self {
            outbound_redirected: rate(|of| of.outbound_redirected),
            inbound_redirected: rate(|of| of.inbound_redirected),
            untouched: rate(|of| of.untouched),
            before_sidecar: rate(|of| of.before_sidecar),
            refused: rate(|of| of.refused),
            given_up: rate(|of| of.given_up),
            udp: rate(|of| of.udp),
        }
    }
}

impl TopReport {
    /// A node without an answer.
    #[must_use]
    pub fn silent(node: &str, why: String) -> Self {
        Self {
            node: node.to_owned(),
            version: None,
            origin: Origin::Nowhere,
            no_answer: Some(why),
            problems: Vec::new(),
            seconds: None,
            pods: Vec::new(),
        }
    }
}

impl Row {
    /// What needs a look first has the lowest number.
    #[must_use]
    pub fn urgency(&self) -> u8 {
        match self.sidecar.as_deref() {
            Some("down" | "hangs") => 0,
            Some("up" | "listens") => 4,
            Some("unknown") => 2,
            Some(_) => 1,
            None => 3,
        }
    }

    /// `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
