//! The control socket's answers, as JSON.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};
use sidetrack_common::rule::Rule;
use sidetrack_live::history::Entry;
pub use sidetrack_live::{Connections, Process, Sidecar, TraceEvent, TraceLine};
use sidetrack_policy::{Policy, mesh::MeshName};
pub use sidetrack_reconcile::PodState;

use sidetrack_datapath::netns::may_lead_to;

/// For how long a refusal is a reason to look at a pod.
const RECENT_SECONDS: u64 = 60;

/// The agent as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Version of the agent.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// The pods' cgroup.
    pub cgroup: String,
    /// Whether the first full list of pods is applied.
    pub ready: bool,
    /// How many changes by others it has repaired.
    #[serde(default)]
    pub repairs: u64,
    /// What is wrong, as sentences.
    pub problems: Vec<String>,
    /// What people should know although nothing is wrong, as sentences.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What happened last, oldest first.
    #[serde(default)]
    pub events: Vec<Entry>,
}

/// What sidetrack costs on this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Enrolled pods.
    pub enrolled: u64,
    /// The pinned maps.
    pub maps: Vec<MapCost>,
    /// Whether the kernel says what maps take (Linux 6.4). Otherwise `bytes` is what they would take if they were full.
    pub maps_exact: bool,
    /// The agent's process.
    pub agent: Option<ProcessCost>,
}

/// What a map takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCost {
    /// Its name.
    pub map: String,
    /// All of it, in bytes.
    pub bytes: u64,
    /// The part that comes and goes with its rows.
    pub row_bytes: u64,
    /// Its rows, where they are counted.
    pub rows: Option<u64>,
    /// How many rows it can have.
    pub capacity: Option<u64>,
}

/// What a process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessCost {
    /// Memory that is resident, in bytes.
    pub resident_bytes: u64,
    /// The most that ever was.
    pub peak_resident_bytes: u64,
    /// Seconds of processor time.
    pub cpu_seconds: f64,
    /// Seconds since it started.
    pub uptime_seconds: f64,
}

impl Cost {
    /// Bytes of all maps.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.maps.iter().map(|map| map.bytes).sum()
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.maps.iter().map(|map| map.row_bytes).sum()
    }
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetnsStatus {
    /// How the agent found it, or `net:[INODE]` once that is gone.
    pub path: String,
    /// Its inode.
    pub inode: u64,
    /// Its cookie, the key of the kernel's maps.
    pub cookie: u64,
}

/// Refused connections of a pod for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Name of the rule.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// How long ago the last one was, in seconds, if it is known.
    pub seconds_ago: Option<u64>,
    /// The last one.
    pub last: Option<TraceEvent>,
}

/// One pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PodStatus {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID, if the manifest has one.
    pub uid: Option<String>,
    /// Whether it is being deleted. Then its sidecar may end.
    #[serde(default)]
    pub terminating: bool,
    /// Where its manifest is.
    pub origin: String,
    /// Its state.
    pub state: PodState,
    /// Why, unless enrolled without a problem.
    pub reason: Option<String>,
    /// What people should know although nothing is wrong.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Its network namespace, when enrolled.
    pub netns: Option<NetnsStatus>,
    /// Policy id in the kernel's maps, when enrolled.
    pub policy_id: Option<u32>,
    /// The active policy, when enrolled. Long lists are omitted where all pods are listed.
    #[serde(default)]
    pub policy: Option<Arc<Policy>>,
    /// Whether IPv6 is captured.
    pub ipv6: bool,
    /// What its sidecar does, when enrolled.
    #[serde(default)]
    pub sidecar: Option<Sidecar>,
    /// Whether the sidecar listens on its inbound port; `None` if that is not known.
    #[serde(default)]
    pub listener: Option<bool>,
    /// Whether it listens on its outbound port; `None` if that is not known.
    #[serde(default)]
    pub outbound_listener: Option<bool>,
    /// Whether it receives DNS queries over UDP; `None` if none are captured, or that is not known.
    #[serde(default)]
    pub dns_listener: Option<bool>,
    /// Whether outbound connections still go direct, because the sidecar has never listened.
    #[serde(default)]
    pub before_sidecar: bool,
    /// Connections so far.
    pub connections: Connections,
    /// Refused connections by reason, and the last of each.
    #[serde(default)]
    pub refusals: Vec<Refusals>,
}

impl NetnsStatus {
    /// One that no path is known of.
    #[must_use]
    pub fn by_inode(inode: u64, cookie: u64) -> Self {
        Self {
            path: format!("net:[{inode}]"),
            inode,
            cookie,
        }
    }

    /// The process through which the namespace was found may have ended, and its number may be another's now.
    pub fn name_by_inode_if_gone(&mut self) {
        if !may_lead_to(Path::new(&self.path), self.inode) {
            self.path = format!("net:[{}]", self.inode);
        }
    }
}

impl PodStatus {
    /// `namespace/name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The mesh whose rules it has, when enrolled and if that is known.
    #[must_use]
    pub fn mesh(&self) -> Option<MeshName> {
        self.netns.as_ref()?;
        Some(self.policy.as_ref()?.dialect.mesh())
    }

    /// What is wrong with it, as a sentence. The agent's own problems name the pods that are partial.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.sentence(matches!(
            self.state,
            PodState::Enrolled | PodState::Outdated | PodState::Rejected
        ))
        .or_else(|| self.sidecar_problem())
    }

    /// Whether it is intercepted by the rows of an earlier agent: this one could not replace it.
    #[must_use]
    pub fn is_of_earlier_agent(&self) -> bool {
        let is_intercepted = matches!(self.state, PodState::Enrolled | PodState::Outdated);
        is_intercepted && self.policy.is_none()
    }

    /// Why an earlier policy is active, if its newest one was rejected.
    #[must_use]
    pub fn outdated(&self) -> Option<String> {
        (self.state == PodState::Outdated).then(|| {
            format!(
                "the newest policy of pod {} was rejected, and the one before is active: {}",
                self.full_name(),
                self.known_reason()
            )
        })
    }

    /// Its reason as the end of a sentence.
    #[must_use]
    pub fn known_reason(&self) -> &str {
        self.reason.as_deref().unwrap_or("no reason is known")
    }

    /// That its sidecar hangs or is missing, which is no problem of a pod that is being deleted.
    fn sidecar_problem(&self) -> Option<String> {
        if self.terminating {
            return None;
        }
        self.hanging_sidecar().or_else(|| self.missing_sidecar())
    }

    /// That its sidecar does not accept connections, or receives no DNS queries.
    fn hanging_sidecar(&self) -> Option<String> {
        let remark = self.sidecar.as_ref()?.remark()?;
        let name = self.full_name();
        Some(format!("pod {name}: {remark}: see `sidetrack why {name}`"))
    }

    /// That its sidecar does not listen, if connections have been refused for that a moment ago.
    fn missing_sidecar(&self) -> Option<String> {
        let is_refused = |rule: Rule| {
            let mut recent = self.refusals.iter().filter(|refusals| {
                let ago = refusals.seconds_ago;
                ago.is_some_and(|ago| ago <= RECENT_SECONDS)
            });
            recent.any(|refusals| refusals.reason == rule.name())
        };
        let port = unserved(
            (self.outbound_listener, is_refused(Rule::SidecarRefused)),
            (self.listener, is_refused(Rule::NoListener)),
        )?;
        let name = self.full_name();
        Some(format!(
            "pod {name}: no sidecar listens on its {port}, and connections are refused: see `sidetrack why {name}`"
        ))
    }

    /// What it waits for, as a sentence: nothing is wrong yet.
    #[must_use]
    pub fn wait(&self) -> Option<String> {
        self.sentence(self.state == PodState::Waiting)
    }

    fn sentence(&self, wanted: bool) -> Option<String> {
        let reason = self.reason.as_ref().filter(|_| wanted)?;
        let kept = if self.state == PodState::Outdated {
            "; the previous policy stays active"
        } else {
            ""
        };
        Some(format!("pod {}: {reason}{kept}", self.full_name()))
    }
}

/// The sidecar's ports on which no one listens, if connections to one of them are refused: whether somebody listens on
/// the outbound port and on the inbound port, as far as that is known, and whether its connections are refused.
const fn unserved(
    outbound: (Option<bool>, bool),
    inbound: (Option<bool>, bool),
) -> Option<&'static str> {
    let is_out = !matches!(outbound.0, Some(true)) && outbound.1;
    let is_in = !matches!(inbound.0, Some(true)) && inbound.1;
    let both = "outbound port or its inbound port";
    match (is_out, is_in) {
        (false, false) => None,
        (true, true) => Some(both),
        (true, false) if matches!(inbound.0, Some(false)) => Some(both),
        (false, true) if matches!(outbound.0, Some(false)) => Some(both),
        (true, false) => Some("outbound port"),
        (false, true) => Some("inbound port"),
    }
}

#[cfg(test)]
mod tests;
