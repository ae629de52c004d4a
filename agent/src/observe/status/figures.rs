//! Figures of the node and of single pods, as the metrics port shows them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use sidetrack_common::{ids::NetnsCookie, names::HANDSHAKE_QUOTA};
use sidetrack_datapath::kernel::{memory::MapMemory, usage::Usage};
use sidetrack_live::{Sidecar, SidecarCounts};

use crate::{
    api::ProcessCost,
    observe::{counters::ByResult, timings::Timings},
};

/// Figures for people who watch many nodes.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Whether the first full list is applied.
    pub ready: bool,
    /// Pods by state.
    pub pods: BTreeMap<&'static str, u64>,
    /// Enrolled pods by the mesh whose rules they have.
    pub meshes: BTreeMap<&'static str, u64>,
    /// How many problems there are.
    pub problems: u64,
    /// By the name of the rule, since the agent started.
    pub connections: BTreeMap<&'static str, u64>,
    /// Those that were refused: every rule that refuses, and its count.
    pub refusals: Vec<(&'static str, u64)>,
    /// How full the kernel's maps are.
    pub maps: Vec<Usage>,
    /// How much memory they take.
    pub memory: Vec<MapMemory>,
    /// What the agent's process takes.
    pub process: ProcessCost,
    /// Connections that needed a handshake row, by the reason.
    pub handshakes: Vec<(&'static str, u64)>,
    /// By what was repaired, since the agent started.
    pub repairs: BTreeMap<&'static str, u64>,
    /// How long things took, since the agent started.
    pub timings: Arc<Timings>,
    /// Enrolled pods whose sidecar does not listen, by capture port.
    pub without_listener: [(&'static str, u64); 3],
    /// Sidecars of enrolled pods by what they do.
    pub sidecars: SidecarCounts,
    /// Figures of single pods, if they are wanted.
    pub per_pod: Option<PerPod>,
}

/// Figures of single pods, by name: no more than were asked for.
#[derive(Clone, Debug, Default)]
pub struct PerPod {
    /// The pods.
    pub pods: Vec<PodFigures>,
    /// How many enrolled pods are not among them.
    pub omitted: u64,
}

/// What the kernel's maps know of an enrolled pod.
#[derive(Clone, Debug)]
pub struct PodFigures {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its network namespace.
    pub cookie: u64,
    /// Whether its sidecar listens on its inbound port.
    pub inbound_listener: Option<bool>,
    /// The same of its outbound port, if that is known.
    pub outbound_listener: Option<bool>,
    /// Whether it receives DNS queries, if any are captured and that is known.
    pub dns_listener: Option<bool>,
    /// What its sidecar does.
    pub sidecar: Sidecar,
    /// Whether it has a problem that only the kernel's maps show.
    pub live_problem: bool,
    /// Whether it is being deleted: its sidecar may end.
    pub terminating: bool,
    /// Its connections since it was enrolled.
    pub connections: ByResult,
}

impl PerPod {
    /// The first pods by name, so that the same ones are shown each time.
    pub(super) fn of(
        pods: &[PodFigures],
        most: usize,
        connections: &HashMap<u64, ByResult>,
    ) -> Self {
        let mut shown = pods[..most.min(pods.len())].to_vec();
        for pod in &mut shown {
            pod.connections = connections.get(&pod.cookie).copied().unwrap_or_default();
        }
        Self {
            omitted: (pods.len() - shown.len()) as u64,
            pods: shown,
        }
    }
}

/// Enrolled pods whose sidecar does not listen, by capture port.
pub(super) fn without_listener(pods: &[PodFigures]) -> [(&'static str, u64); 3] {
    let staying = || pods.iter().filter(|pod| !pod.terminating);
    let count = |is_down: fn(&PodFigures) -> bool| staying().filter(|it| is_down(it)).count();
    [
        (
            "inbound",
            count(|pod| pod.inbound_listener == Some(false)) as u64,
        ),
        (
            "outbound",
            count(|pod| pod.outbound_listener == Some(false)) as u64,
        ),
        ("dns", count(|pod| pod.dns_listener == Some(false)) as u64),
    ]
}

/// How full the kernel's maps are, and what they say of the pods.
#[derive(Clone, Debug, Default)]
pub(super) struct MapUsage {
    pub(super) maps: Vec<Usage>,
    pub(super) memory: Vec<MapMemory>,
    /// Network namespaces with nearly all the handshakes that one may have, and how many.
    pub(super) crowded: Vec<(NetnsCookie, u64)>,
    /// Enrolled pods, by name.
    pub(super) pods: Arc<[PodFigures]>,
}

impl MapUsage {
    /// What people should know of it.
    pub(super) fn problems(&self) -> Vec<String> {
        let name = |cookie: NetnsCookie| {
            let pod = self.pods.iter().find(|pod| pod.cookie == cookie.get());
            pod.map_or_else(
                || format!("netns {cookie}"),
                |pod| format!("{}/{}", pod.namespace, pod.name),
            )
        };
        let crowded = self.crowded.iter().map(|(cookie, count)| {
            format!(
                "pod {}: {count} of its connections wait for its sidecar, which may be {HANDSHAKE_QUOTA}; more are refused: restart the sidecar if it does not accept them",
                name(*cookie)
            )
        });
        let maps = self.maps.iter().filter_map(Usage::problem);
        maps.chain(crowded).collect()
    }
}
