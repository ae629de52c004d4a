//! The sources of a pod's inputs: annotations, istio-init, the sidecar's environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use super::{Input, Inputs};
use crate::{
    dialect,
    manifest::NETNS_ANNOTATION,
    policy::{ACCELERATE, BEFORE_SIDECAR, PolicyError},
    record::{self, Record},
    select::{LABEL, sidecar},
};

/// Annotations and the inputs they set.
const ANNOTATIONS: [(&str, Input); 14] = [
    (ACCELERATE, Input::Accelerate),
    (BEFORE_SIDECAR, Input::BeforeSidecar),
    (dialect::ANNOTATION, Input::Dialect),
    (
        "istio.io/reroute-virtual-interfaces",
        Input::VirtualInterfaces,
    ),
    (
        "traffic.sidecar.istio.io/kubevirtInterfaces",
        Input::VirtualInterfaces,
    ),
    ("sidecar.istio.io/interceptionMode", Input::InterceptionMode),
    (
        "traffic.sidecar.istio.io/includeInboundPorts",
        Input::InboundPorts,
    ),
    (
        "traffic.sidecar.istio.io/excludeInboundPorts",
        Input::ExcludeInboundPorts,
    ),
    ("status.sidecar.istio.io/port", Input::StatusPort),
    (
        "traffic.sidecar.istio.io/includeOutboundIPRanges",
        Input::ServiceCidr,
    ),
    (
        "traffic.sidecar.istio.io/excludeOutboundIPRanges",
        Input::ServiceExcludeCidr,
    ),
    (
        "traffic.sidecar.istio.io/includeOutboundPorts",
        Input::OutboundPorts,
    ),
    (
        "traffic.sidecar.istio.io/excludeOutboundPorts",
        Input::OutboundPortsExclude,
    ),
    (
        "traffic.sidecar.istio.io/excludeInterfaces",
        Input::ExcludeInterfaces,
    ),
];

/// Environment variables and the inputs they set.
const VARIABLES: [(&str, Input); 8] = [
    ("ISTIO_META_INTERCEPTION_MODE", Input::InterceptionMode),
    ("ISTIO_INBOUND_TPROXY_MARK", Input::TproxyMark),
    ("ISTIO_INBOUND_TPROXY_ROUTE_TABLE", Input::TproxyTable),
    ("ISTIO_META_DNS_CAPTURE", Input::DnsCapture),
    ("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", Input::LoopbackCidr),
    ("ISTIO_OUTBOUND_OWNER_GROUPS", Input::OwnerGroups),
    (
        "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE",
        Input::OwnerGroupsExclude,
    ),
    ("ISTIO_DUAL_STACK", Input::DualStack),
];

/// The pod's annotations.
pub fn annotations(pod: &Pod) -> Inputs {
    let mut inputs = Inputs::default();
    let annotations = pod.metadata.annotations.iter().flatten();
    let by_name: BTreeMap<&str, &str> = annotations
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    for (name, input) in ANNOTATIONS {
        if let Some(value) = by_name.get(name) {
            inputs.set(input, value, format!("annotation {name}"));
        }
    }
    inputs
}

/// Prefixes of annotations of which every name is known here. Istio has further annotations with
/// `sidecar.istio.io/`, which are not about interception.
const PREFIXES: [&str; 2] = ["traffic.sidecar.istio.io/", "sidetrack.dev/"];
/// Names with these prefixes that set no input.
const OTHERS: [&str; 3] = [record::ANNOTATION, NETNS_ANNOTATION, LABEL];
/// Most names that are shown: a pod may have thousands.
const SHOWN: usize = 3;
/// How alike a name and the one that was perhaps meant are, 1 being equal.
const ALIKE: f64 = 0.8;

/// Annotations that look like known ones and are not, with the names that were perhaps meant.
pub fn unknown_annotations(pod: &Pod) -> Vec<String> {
    let names = pod.metadata.annotations.iter().flatten();
    let known = || ANNOTATIONS.iter().map(|(name, _)| *name).chain(OTHERS);
    let unknown = names
        .map(|(name, _)| name.as_str())
        .filter(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|name| !known().any(|known| known == *name));
    unknown
        .take(SHOWN)
        .map(|name| {
            let alike = |known: &str| strsim::jaro_winkler(name, known);
            let meant = known()
                .max_by(|one, other| alike(one).total_cmp(&alike(other)))
                .filter(|known| alike(known) > ALIKE);
            match meant {
                Some(meant) => format!("{name} is not known, perhaps {meant} is meant"),
                None => format!("{name} is not known"),
            }
        })
        .collect()
}

/// The arguments and environment of the pod's istio-init container, or of the one that the webhook
/// removed.
pub fn init_container(pod: &Pod) -> Result<Option<Inputs>, PolicyError> {
    if let Some(container) = record::istio_init(pod) {
        let record = Record::of_container(container);
        return record.inputs(record::ISTIO_INIT).map(Some);
    }
    let place = format!("the removed istio-init (annotation {})", record::ANNOTATION);
    Record::of_annotation(pod)?
        .map(|record| record.inputs(&place))
        .transpose()
}

/// The sidecar's environment, where the injector repeats mesh-wide settings.
pub fn sidecar_environment(pod: &Pod) -> Inputs {
    let Some(sidecar) = sidecar(pod) else {
        return Inputs::default();
    };
    let literal = sidecar.env.iter().flatten().filter_map(|variable| {
        let value = variable.value.as_deref()?;
        Some((variable.name.as_str(), value))
    });
    variables(literal, &sidecar.name)
}

/// Environment variables of a container.
pub(crate) fn variables<'a>(
    variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    place: &str,
) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, value) in variables {
        if let Some((_, input)) = VARIABLES.iter().find(|(known, _)| *known == name) {
            let origin = format!("variable {name} of {place}");
            inputs.set(*input, value, origin);
        }
    }
    inputs
}
