//! The metrics page, in the OpenMetrics text format or in the older one of Prometheus.

mod format;

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram, info::Info,
    },
    registry::{Registry, Unit},
};

pub use self::format::Format;
use crate::observe::status::{Figures, PerPod, PodFigures};

/// The metrics page.
///
/// # Errors
/// If a metric cannot be encoded.
pub fn text(figures: Figures, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(figures)));
    format.encode(&registry)
}

/// Figures that exist already are encoded as they are. Metrics that count by themselves would be a
/// second copy.
#[derive(Debug)]
struct Page(Figures);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Figures {
            ready,
            pods,
            meshes,
            problems,
            connections,
            refusals,
            maps,
            memory,
            process,
            handshakes,
            repairs,
            timings,
            without_listener,
            sidecars,
            per_pod,
        } = &self.0;
        let to = &mut encoder;
        BUILD.one(to, &Info::new([("version", sidetrack_base::VERSION)]))?;
        READY.one(to, &gauge(u64::from(*ready)))?;
        PODS.all(
            to,
            pods.iter()
                .map(|(state, n)| ([("state", *state)], gauge(*n))),
        )?;
        let by_mesh = |(mesh, n): (&&'static str, &u64)| ([("mesh", *mesh)], gauge(*n));
        MESHES.all(to, meshes.iter().map(by_mesh))?;
        let by_port = |(port, n): &(&'static str, u64)| ([("port", *port)], gauge(*n));
        WITHOUT_LISTENER.all(to, without_listener.iter().map(by_port))?;
        HANGING.one(to, &gauge(sidecars.hangs))?;
        WAITING.one(to, &gauge(sidecars.waiting))?;
        PROBLEMS.one(to, &gauge(*problems))?;
        let by_rule = |(rule, n): (&&'static str, &u64)| ([("rule", *rule)], counter(*n));
        CONNECTIONS.all(to, connections.iter().map(by_rule))?;
        let by_reason = |(rule, n): &(&'static str, u64)| ([("reason", *rule)], counter(*n));
        REFUSALS.all(to, refusals.iter().map(by_reason))?;
        MAP_ROWS.all(
            to,
            maps.iter().map(|it| ([("map", it.map)], gauge(it.rows))),
        )?;
        let capacity = maps
            .iter()
            .map(|it| ([("map", it.map)], gauge(it.capacity)));
        MAP_CAPACITY.all(to, capacity)?;
        let memory = memory.iter().map(|it| ([("map", it.map)], gauge(it.bytes)));
        MAP_MEMORY.all(to, memory)?;
        RESIDENT.one(to, &gauge(process.resident_bytes))?;
        CPU.one(to, &ConstCounter::new(process.cpu_seconds))?;
        let handshakes = handshakes.iter();
        let handshakes = handshakes.map(|(reason, n)| ([("reason", *reason)], counter(*n)));
        HANDSHAKES.all(to, handshakes)?;
        REPAIRS.all(
            to,
            repairs
                .iter()
                .map(|(what, n)| ([("what", *what)], counter(*n))),
        )?;
        ENROLLMENT.one(to, timings.enrollment())?;
        let adds = timings
            .adds()
            .map(|(answer, it)| ([("answer", answer)], it.clone()));
        CNI_ADD.all::<_, Histogram>(to, adds)?;
        per_pod
            .as_ref()
            .map_or(Ok(()), |pods| single_pods(to, pods))
    }
}

/// Figures of single pods.
fn single_pods(to: &mut DescriptorEncoder<'_>, per_pod: &PerPod) -> fmt::Result {
    let PerPod { pods, omitted } = per_pod;
    let listeners = pods.iter().flat_map(|pod| {
        let known = [
            ("inbound", pod.inbound_listener),
            ("outbound", pod.outbound_listener),
            ("dns", pod.dns_listener),
        ];
        known.into_iter().filter_map(|(port, up)| {
            let [namespace, name] = labels(pod);
            Some(([namespace, name, ("port", port)], gauge(u64::from(up?))))
        })
    });
    POD_LISTENER.all(to, listeners)?;
    let waiting = pods
        .iter()
        .map(|pod| (labels(pod), gauge(pod.sidecar.waiting())));
    POD_WAITING.all(to, waiting)?;
    let connections = pods.iter().flat_map(|pod| {
        pod.connections.iter().map(|(result, n)| {
            let [namespace, name] = labels(pod);
            ([namespace, name, ("result", result)], counter(n))
        })
    });
    POD_CONNECTIONS.all(to, connections)?;
    PODS_OMITTED.one(to, &gauge(*omitted))
}

fn labels(pod: &PodFigures) -> [(&'static str, &str); 2] {
    [("namespace", &pod.namespace), ("pod", &pod.name)]
}

fn gauge(value: u64) -> ConstGauge<u64> {
    ConstGauge::new(value)
}

fn counter(value: u64) -> ConstCounter<u64> {
    ConstCounter::new(value)
}

/// What the page says of a metric before its values.
struct Family {
    /// Without the suffix that its type adds: `_total` of a counter, `_info`, and the unit.
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    unit: Option<Unit>,
}

/// Constants of the families: name, type, unit if it has one, name on the page, help.
macro_rules! families {
    ($($family:ident: $kind:ident $(in $unit:ident)?, $name:literal, $help:literal;)+) => {
        $(const $family: Family = Family {
            name: $name,
            help: $help,
            kind: MetricType::$kind,
            unit: families!(@ $($unit)?),
        };)+
    };
    (@) => { None };
    (@ $unit:ident) => { Some(Unit::$unit) };
}

families! {
    BUILD: Info, "sidetrack_build",
        "Version of the agent; the value is always 1";
    READY: Gauge, "sidetrack_ready",
        "Whether the first full list of pods is applied";
    PODS: Gauge, "sidetrack_pods",
        "Pods of this node by state";
    MESHES: Gauge, "sidetrack_enrolled_pods",
        "Enrolled pods by the mesh whose rules they have";
    WITHOUT_LISTENER: Gauge, "sidetrack_pods_without_listener",
        "Enrolled pods whose sidecar does not listen, by capture port";
    HANGING: Gauge, "sidetrack_hanging_sidecars",
        "Enrolled pods whose sidecar listens and does not accept connections";
    WAITING: Gauge, "sidetrack_waiting_connections",
        "Connections that wait for sidecars that hang";
    PROBLEMS: Gauge, "sidetrack_problems",
        "Problems that `sidetrack status` lists";
    CONNECTIONS: Counter, "sidetrack_connections",
        "Connections of enrolled pods by the rule that decided them";
    REFUSALS: Counter, "sidetrack_refusals",
        "Connections of enrolled pods that were refused, and socket options, by the rule that refused them";
    MAP_ROWS: Gauge, "sidetrack_map_rows",
        "Rows in the kernel's maps";
    MAP_CAPACITY: Gauge, "sidetrack_map_capacity",
        "Rows that the kernel's maps can have before something is refused";
    MAP_MEMORY: Gauge in Bytes, "sidetrack_map_memory",
        "Memory of the kernel's maps; before Linux 6.4 what they would take if they were full";
    RESIDENT: Gauge in Bytes, "process_resident_memory",
        "Resident memory of the agent";
    CPU: Counter in Seconds, "process_cpu",
        "Processor time of the agent";
    REPAIRS: Counter, "sidetrack_repairs",
        "Repairs of changes that other programs made, by what was changed";
    HANDSHAKES: Counter, "sidetrack_handshakes",
        "Redirected connections without a target that names their destination, by the reason";
    ENROLLMENT: Histogram in Seconds, "sidetrack_enrollment_duration",
        "Time from when the agent knew that a pod is to be enrolled until it was";
    CNI_ADD: Histogram in Seconds, "sidetrack_cni_add_duration",
        "Time that an ADD of the CNI plugin waited for the agent's answer, by answer";
    POD_LISTENER: Gauge, "sidetrack_pod_listener",
        "Whether the pod's sidecar listens, by capture port";
    POD_WAITING: Gauge, "sidetrack_pod_waiting_connections",
        "Connections that wait for the pod's sidecar, if it hangs";
    POD_CONNECTIONS: Counter, "sidetrack_pod_connections",
        "Connections of the pod since it was enrolled, by what became of them";
    PODS_OMITTED: Gauge, "sidetrack_pods_left_out",
        "Enrolled pods without series of their own because of --metrics-per-pod";
}

impl Family {
    fn one(&self, to: &mut DescriptorEncoder<'_>, metric: &impl EncodeMetric) -> fmt::Result {
        let unit = self.unit.as_ref();
        metric.encode(to.encode_descriptor(self.name, self.help, unit, self.kind)?)
    }

    fn all<L: EncodeLabelSet, M: EncodeMetric>(
        &self,
        to: &mut DescriptorEncoder<'_>,
        metrics: impl Iterator<Item = (L, M)>,
    ) -> fmt::Result {
        let unit = self.unit.as_ref();
        let mut family = to.encode_descriptor(self.name, self.help, unit, self.kind)?;
        for (labels, metric) in metrics {
            metric.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
