//! The sources of a pod's inputs: annotations, istio-init, the sidecar's environment.

use super::{Input, Inputs};
use crate::{
    arguments, dialect,
    facts::{ContainerFacts, PodFacts},
    manifest::NETNS_ANNOTATION,
    policy::{ACCELERATE, BEFORE_SIDECAR, PolicyError},
    record::{self, Record},
    select::{INJECT, LABEL},
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

/// Prefixes of annotations of which every name is known here. Istio has further annotations with
/// `sidecar.istio.io/`, which are not about interception.
const PREFIXES: [&str; 2] = ["traffic.sidecar.istio.io/", "sidetrack.dev/"];
/// Annotations that set no input.
const OTHERS: [&str; 4] = [record::ANNOTATION, NETNS_ANNOTATION, LABEL, INJECT];
/// How alike a name and the one that was perhaps meant are, 1 being equal.
const ALIKE: f64 = 0.8;

fn known_annotations() -> impl Iterator<Item = &'static str> {
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

/// The pod's annotations.
pub fn annotations(pod: &PodFacts) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, input) in ANNOTATIONS {
        if let Some(value) = pod.meta.annotations.get(name) {
            inputs.set(input, value, format!("annotation {name}"));
        }
    }
    inputs
}

/// Annotations that look like known ones and are not, with the names that were perhaps meant.
pub fn unknown_annotations(pod: &PodFacts) -> Vec<String> {
    let unknown = pod.meta.annotations.unknown().iter();
    unknown
        .map(|name| {
            let alike = |known: &str| strsim::jaro_winkler(name, known);
            let meant = known_annotations()
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
pub fn init_container(pod: &PodFacts) -> Result<Option<Inputs>, PolicyError> {
    if let Some(container) = pod.istio_init() {
        return of_istio_init(container).map(Some);
    }
    let place = format!("the removed istio-init (annotation {})", record::ANNOTATION);
    let Some(record) = Record::of_annotation(pod)? else {
        return Ok(None);
    };
    let words = record.words.iter().map(String::as_str);
    let env = record.env.iter();
    let env = env.map(|(name, value)| (name.as_str(), value.as_str()));
    command_line(words, env, &place).map(Some)
}

/// The arguments and environment of an istio-init container.
pub fn of_istio_init(container: &ContainerFacts) -> Result<Inputs, PolicyError> {
    let words = container.words.iter().map(String::as_str);
    command_line(words, env(container), record::ISTIO_INIT)
}

/// The sidecar's environment, where the injector repeats mesh-wide settings.
pub fn sidecar_environment(pod: &PodFacts) -> Inputs {
    let Some(sidecar) = pod.sidecar() else {
        return Inputs::default();
    };
    variables(env(sidecar), sidecar.name)
}

fn env(container: &ContainerFacts) -> impl Iterator<Item = (&str, &str)> {
    let env = container.env.iter();
    env.map(|(name, value)| (*name, value.as_str()))
}

/// The words and variables of a container; `place` is what to call it.
fn command_line<'a>(
    words: impl Iterator<Item = &'a str>,
    env: impl Iterator<Item = (&'a str, &'a str)>,
    place: &str,
) -> Result<Inputs, PolicyError> {
    let mut inputs = arguments::parse(words, place)?;
    inputs.add(variables(env, place));
    Ok(inputs)
}

/// Environment variables of a container.
fn variables<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>, place: &str) -> Inputs {
    let mut inputs = Inputs::default();
    for (name, value) in variables {
        if let Some((_, input)) = VARIABLES.iter().find(|(known, _)| *known == name) {
            let origin = format!("variable {name} of {place}");
            inputs.set(*input, value, origin);
        }
    }
    inputs
}
