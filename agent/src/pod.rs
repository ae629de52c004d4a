//! Which pods are intercepted, and why the others are not.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::Serialize;

use crate::{
    mesh::{Mesh, VirtualInterfaces},
    policy::{Mode, Policy, PolicyError},
};

/// Label on a pod or namespace that opts in (`enabled`) or out (`disabled`).
pub const LABEL: &str = "sidetrack.dev/interception";
/// Annotation that names the pod's network namespace, for pods that come from a directory.
pub const NETNS_ANNOTATION: &str = "sidetrack.dev/netns";
/// Name of the sidecar container, in every injector's output.
const SIDECAR: &str = "istio-proxy";

/// Namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodRef {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
}

impl std::fmt::Display for PodRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl std::str::FromStr for PodRef {
    type Err = String;

    /// `NAMESPACE/NAME`, or `NAME` in namespace `default`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(format!("{text:?} is not a pod; write NAMESPACE/NAME"));
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }
}

/// Which sidecar pods to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Enroll {
    /// Those whose label opts in.
    Labelled,
    /// All but those whose label opts out.
    Injected,
}

/// Why a pod is left alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It shares the node's network.
    #[error("it uses the host's network")]
    HostNetwork,
    /// Nothing to send its traffic to.
    #[error("it has no sidecar (a container named {SIDECAR})")]
    NoSidecar,
    /// The injector was told not to.
    #[error("sidecar.istio.io/inject is \"false\"")]
    NotInjected,
    /// A label says so.
    #[error("label {LABEL} is {0:?}")]
    OptedOut(String),
    /// No label says otherwise.
    #[error("label {LABEL}=enabled is not set")]
    NotOptedIn,
    /// Interception mode NONE.
    #[error("its interception mode is NONE")]
    ModeNone,
    /// It has ended.
    #[error("it has completed")]
    Completed,
}

/// Why a pod that should be intercepted cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Values that cannot be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Policy(Vec<PolicyError>),
    /// TPROXY is not handled.
    #[error(
        "its interception mode is TPROXY, which needs a transparent sidecar; set sidecar.istio.io/interceptionMode to REDIRECT"
    )]
    Tproxy,
    /// Virtual interfaces are not handled.
    #[error(
        "it names virtual interfaces ({0}), and what passes through the pod from them cannot be intercepted; leave the pod to istio-init, or start the agent with --virtual-interfaces local-only"
    )]
    VirtualInterfaces(String),
}

/// What becomes of a pod.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// It is to be intercepted.
    Enrolled(Box<Policy>),
    /// It is left alone.
    NotTaken(NotTaken),
    /// It should be intercepted, and something stands against it.
    Rejected(Rejected),
}

/// The sidecar container, also a native one (an init container that keeps running).
#[must_use]
pub fn sidecar(pod: &Pod) -> Option<&Container> {
    let spec = pod.spec.as_ref()?;
    let native = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    spec.containers
        .iter()
        .chain(native)
        .find(|container| container.name == SIDECAR)
}

/// Judges a pod by its manifest.
#[must_use]
pub fn wanted(pod: &Pod, mesh: &Mesh) -> Wanted {
    if let Some(reason) = not_taken(pod, mesh.enroll) {
        return Wanted::NotTaken(reason);
    }
    let policy = match Policy::of_pod(pod, &mesh.defaults) {
        Ok(policy) => policy,
        Err(errors) => return Wanted::Rejected(Rejected::Policy(errors)),
    };
    match policy.mode {
        Mode::None => return Wanted::NotTaken(NotTaken::ModeNone),
        Mode::Tproxy => return Wanted::Rejected(Rejected::Tproxy),
        Mode::Redirect => {}
    }
    let refuses = mesh.virtual_interfaces == VirtualInterfaces::Refuse;
    if refuses && !policy.virtual_interfaces.is_empty() {
        let names = policy.virtual_interfaces.join(",");
        return Wanted::Rejected(Rejected::VirtualInterfaces(names));
    }
    Wanted::Enrolled(Box::new(policy))
}

fn not_taken(pod: &Pod, enroll: Enroll) -> Option<NotTaken> {
    let label = pod
        .metadata
        .labels
        .iter()
        .flatten()
        .find(|(name, _)| *name == LABEL);
    let annotation = |name: &str| {
        pod.metadata
            .annotations
            .as_ref()?
            .get(name)
            .map(String::as_str)
    };
    match (label.map(|(_, value)| value.as_str()), enroll) {
        (Some("enabled"), _) | (None, Enroll::Injected) => {}
        (Some("disabled"), _) => return Some(NotTaken::OptedOut("disabled".to_owned())),
        (Some(other), Enroll::Labelled) => return Some(NotTaken::OptedOut(other.to_owned())),
        (Some(_), Enroll::Injected) => {}
        (None, Enroll::Labelled) => return Some(NotTaken::NotOptedIn),
    }
    let host_network = |spec: &PodSpec| spec.host_network == Some(true);
    if pod.spec.as_ref().is_some_and(host_network) {
        return Some(NotTaken::HostNetwork);
    }
    if annotation("sidecar.istio.io/inject") == Some("false") {
        return Some(NotTaken::NotInjected);
    }
    if sidecar(pod).is_none() {
        return Some(NotTaken::NoSidecar);
    }
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed")).then_some(NotTaken::Completed)
}
