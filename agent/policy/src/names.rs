//! Names in manifests that mean something: annotations, labels and variables, and the inputs that they set.

use crate::inputs::Input;

/// Annotation that lets a pod's init containers reach the network: `passthrough`, or `refuse` (the
/// default).
pub const BEFORE_SIDECAR: &str = "sidetrack.dev/before-sidecar";

/// Annotation that has a pod's connections to its sidecar accelerated: `true`, or `false` (the default).
pub const ACCELERATE: &str = "sidetrack.dev/accelerate";

/// Annotation that sets a pod's dialect. It wins over the tags of its images.
pub const DIALECT: &str = "sidetrack.dev/dialect";

/// Annotation that holds the record of a removed istio-init.
pub const REMOVED_ISTIO_INIT: &str = "sidetrack.dev/istio-init";

/// Annotation that names the pod's network namespace, for pods that come from a directory.
pub const NETNS: &str = "sidetrack.dev/netns";

/// Label on a pod or namespace that opts in (`enabled`) or out (`disabled`).
pub const LABEL: &str = "sidetrack.dev/interception";
/// Turns the injector off for a pod: a label since Istio 1.11, an annotation before.
pub const INJECT: &str = "sidecar.istio.io/inject";

/// Annotations and the inputs they set.
pub(crate) const ANNOTATIONS: [(&str, Input); 14] = [
    (ACCELERATE, Input::Accelerate),
    (BEFORE_SIDECAR, Input::BeforeSidecar),
    (DIALECT, Input::Dialect),
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
pub(crate) const VARIABLES: [(&str, Input); 8] = [
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

/// Prefixes of annotations of which every name is known here. Istio has further annotations with
/// `sidecar.istio.io/`, which are not about interception.
const PREFIXES: [&str; 2] = ["traffic.sidecar.istio.io/", "sidetrack.dev/"];
/// Annotations that set no input.
const OTHERS: [&str; 4] = [REMOVED_ISTIO_INIT, NETNS, LABEL, INJECT];

/// Every annotation that means something.
pub(crate) fn known_annotations() -> impl Iterator<Item = &'static str> {
    ANNOTATIONS.iter().map(|(name, _)| *name).chain(OTHERS)
}

/// The same name as a constant, if it is one of an annotation that means something.
pub(crate) fn known_annotation(name: &str) -> Option<&'static str> {
    known_annotations().find(|known| *known == name)
}

/// Whether every annotation that begins like this is known.
pub(crate) fn is_of_known_prefix(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The same name as a constant, if it is one of a variable that sets an input.
pub(crate) fn known_variable(name: &str) -> Option<&'static str> {
    let mut names = VARIABLES.iter().map(|(name, _)| *name);
    names.find(|known| *known == name)
}
