//! Which pods are enrolled, and why the others are not.

use std::fmt;

use crate::{
    dialect::Dialect,
    error::PolicyError,
    facts::{ContainerFacts, PodFacts},
    mesh::{Mesh, VirtualInterfaces},
    mesh_name::MeshName,
    names::{DISABLE_ENVOY, InjectedNames, ambient, consul, kuma},
    policy::{Mode, Policy},
    text::{boolean, shortened},
};

pub use crate::{
    mesh::Enroll,
    names::{INJECT, LABEL},
};

/// Why a pod is skipped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// It uses the node's network.
    #[error("it uses the host's network")]
    HostNetwork,
    /// No container can receive its traffic.
    #[error("it has no sidecar (a container named {})", InjectedNames::sidecars())]
    NoSidecar,
    /// Its sidecar is there for gRPC clients only.
    #[error(
        "its istio-proxy runs without Envoy ({DISABLE_ENVOY} is true): nothing in it receives connections"
    )]
    Proxyless,
    /// No sidecar, on a node that serves ambient mode.
    #[error(
        "it has no sidecar, and is not in ambient mode: label {} is not \"ambient\" on the pod or its namespace, or it is \"none\" on the pod, or annotation {} is set",
        ambient::MODE,
        ambient::SIDECAR
    )]
    NotAmbient,
    /// Its sidecar is of a mesh that is not served.
    #[error("its sidecar is of {0}, which is not among the agent's --mesh")]
    OtherMesh(MeshName),
    /// Its mesh's injector has not been through it.
    #[error("annotation {0} does not say that the injector of {1} has been through it")]
    NotOfInjector(&'static str, MeshName),
    /// Its proxy is not transparent.
    #[error("annotation {0} is not set: its proxy is not transparent")]
    NotTransparent(&'static str),
    /// The injector is turned off for it.
    #[error("sidecar.istio.io/inject is \"false\"")]
    NotInjected,
    /// Its proxy is a gateway.
    #[error("its proxy is a gateway (proxy router)")]
    Gateway,
    /// A label opts it out.
    #[error("label {LABEL} is \"disabled\" on {0}")]
    OptedOut(Holder),
    /// No label opts it in.
    #[error("label {LABEL} is not \"enabled\" on the pod or its namespace")]
    NotOptedIn,
    /// A label has a value that says nothing.
    #[error("label {LABEL} is {0:?} on {1}; write \"enabled\" or \"disabled\"")]
    OtherLabel(String, Holder),
    /// Interception mode NONE.
    #[error("its interception mode is NONE")]
    ModeNone,
    /// It has ended.
    #[error("it has completed")]
    Completed,
}

impl Skipped {
    /// Whether another label of its namespace could have changed that.
    #[must_use]
    pub const fn is_by_namespace(&self) -> bool {
        matches!(
            self,
            Self::NotOptedIn
                | Self::NotAmbient
                | Self::OptedOut(Holder::Namespace)
                | Self::OtherLabel(_, Holder::Namespace)
        )
    }
}

/// What has a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The pod itself.
    Pod,
    /// Its Kubernetes namespace.
    Namespace,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "the pod",
            Self::Namespace => "its namespace",
        })
    }
}

/// Why a pod that should be enrolled cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// Values that cannot be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Policy(Vec<PolicyError>),
    /// Sidecars of two meshes.
    #[error(
        "it has sidecars of {0}, and connections can go to one of them only; turn off injection of the others for this pod"
    )]
    SeveralMeshes(String),
    /// TPROXY with rules of an Istio version that did it in another way.
    #[error(
        "its interception mode is TPROXY with the rules of Istio {0}, which hand inbound connections to the outbound port; use a sidecar of Istio 1.7 or later, or set sidecar.istio.io/interceptionMode to REDIRECT"
    )]
    OldTproxy(Dialect),
    /// TPROXY on a kernel that does not report interfaces.
    #[error(
        "its interception mode is TPROXY, but this node's kernel does not report the interface of a connection; use Linux 5.17 or later, or set sidecar.istio.io/interceptionMode to REDIRECT"
    )]
    TproxyWithoutInterfaces,
    /// Ambient mode on such a kernel.
    #[error(
        "it is in ambient mode, where ztunnel calls it from its clients' addresses, and this node's kernel does not report the interface of a connection; use Linux 5.17 or later, or istio-cni on this node"
    )]
    AmbientWithoutInterfaces,
    /// TPROXY and virtual interfaces.
    #[error(
        "its interception mode is TPROXY and it names virtual interfaces ({0}): istio-iptables' rules for these contradict each other; set sidecar.istio.io/interceptionMode to REDIRECT"
    )]
    TproxyWithVirtualInterfaces(String),
    /// Virtual interfaces are not supported.
    #[error(
        "it names virtual interfaces ({0}), and traffic that passes through the pod from them is not intercepted: that takes an agent with --virtual-interfaces full, and a kernel that runs programs on interfaces (`sidetrack doctor`). Use istio-init for this pod, or start the agent with --virtual-interfaces local-only"
    )]
    VirtualInterfaces(String),
    /// Its sockets are not the host's.
    #[error(
        "its runtimeClassName is {0:?}: in a sandbox of gVisor or Kata sockets are not the node's, so hooks on the node do not see them; use istio-init for this pod"
    )]
    Sandboxed(String),
    /// The same, by the handler of its class.
    #[error(
        "its runtimeClassName is {class:?}, whose handler is {handler:?}: in a sandbox of gVisor or Kata sockets are not the node's, so hooks on the node do not see them; use istio-init for this pod"
    )]
    SandboxedBy {
        /// The class.
        class: String,
        /// Its handler.
        handler: String,
    },
    /// The kernel does not report interfaces.
    #[error(
        "its policy names interfaces ({0}), but this node's kernel does not report the interface of a connection; use Linux 5.17 or later"
    )]
    Interfaces(String),
}

/// The result of selecting a pod.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// It is to be enrolled, with this policy.
    Enrolled(Box<Policy>),
    /// It is skipped.
    Skipped(Skipped),
    /// It should be enrolled, but cannot be.
    Rejected(Rejected),
}

/// Whether agents would select a pod, as far as a manifest shows: the labels of its namespace are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// They would, unless the namespace opts out.
    Selected,
    /// Only if the namespace opts in, for this reason.
    IfNamespaceOptsIn(Skipped),
    /// They would not.
    Skipped(Skipped),
}

/// Whether agents that select pods like this would select a pod by its manifest alone.
///
/// A namespace that opts in to ambient mode is not considered.
#[must_use]
pub fn prospect(pod: &PodFacts, mesh: &Mesh) -> Prospect {
    let labeled = NamespaceLabels {
        interception: Some("enabled"),
        ..NamespaceLabels::default()
    };
    match skipped(pod, NamespaceLabels::default(), mesh) {
        None => Prospect::Selected,
        Some(reason) if skipped(pod, labeled, mesh).is_none() => {
            Prospect::IfNamespaceOptsIn(reason)
        }
        Some(reason) => Prospect::Skipped(reason),
    }
}

/// What labels of a pod's namespace say.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceLabels<'a> {
    /// [`LABEL`].
    pub interception: Option<&'a str>,
    /// `istio.io/dataplane-mode`.
    pub dataplane_mode: Option<&'a str>,
}

impl<'a> NamespaceLabels<'a> {
    /// With a value of [`LABEL`], and no other label.
    #[must_use]
    pub const fn interception(value: Option<&'a str>) -> Self {
        Self {
            interception: value,
            dataplane_mode: None,
        }
    }
}

impl Wanted {
    /// In a word, and why, unless it is to be enrolled.
    #[must_use]
    pub fn named(&self) -> (&'static str, Option<String>) {
        match self {
            Self::Enrolled(_) => ("enrolled", None),
            Self::Skipped(reason) => ("skipped", Some(reason.to_string())),
            Self::Rejected(reason) => ("rejected", Some(reason.to_string())),
        }
    }
}

/// Selects a pod by its manifest and the value of label [`LABEL`] on its namespace.
#[must_use]
pub fn wanted(pod: &PodFacts, namespace_label: Option<&str>, mesh: &Mesh) -> Wanted {
    let labels = NamespaceLabels::interception(namespace_label);
    wanted_in(pod, labels, None, mesh)
}

/// Selects a pod by its manifest, what the labels of its namespace say, and the handler of its runtime class, if that is known.
#[must_use]
pub fn wanted_in(
    pod: &PodFacts,
    labels: NamespaceLabels<'_>,
    runtime_handler: Option<&str>,
    mesh: &Mesh,
) -> Wanted {
    if let Some(reason) = skipped(pod, labels, mesh) {
        return Wanted::Skipped(reason);
    }
    let meshes: Vec<&str> = pod.meshes().map(MeshName::name).collect();
    if meshes.len() > 1 {
        return Wanted::Rejected(Rejected::SeveralMeshes(meshes.join(" and ")));
    }
    if let Some(reason) = sandboxed(pod, runtime_handler) {
        return Wanted::Rejected(reason);
    }
    let policy = match pod.sidecar() {
        Some(_) => Policy::of_pod(pod, &mesh.defaults),
        None => Policy::of_ambient_pod(pod),
    };
    let mut policy = match policy {
        Ok(policy) => policy,
        Err(errors) => return Wanted::Rejected(Rejected::Policy(errors)),
    };
    match policy.mode {
        Mode::None => return Wanted::Skipped(Skipped::ModeNone),
        Mode::Tproxy => {
            if let Err(reason) = check_tproxy(&policy, mesh) {
                return Wanted::Rejected(reason);
            }
        }
        Mode::Redirect => {}
    }
    let refuses = mesh.virtual_interfaces == VirtualInterfaces::Refuse;
    if refuses && !policy.virtual_interfaces.is_empty() {
        let names = shortened(&policy.virtual_interfaces.join(","));
        return Wanted::Rejected(Rejected::VirtualInterfaces(names));
    }
    let named = [
        policy.virtual_interfaces.as_slice(),
        &policy.excluded_interfaces,
    ]
    .concat();
    if !mesh.sees_interfaces && !named.is_empty() {
        return Wanted::Rejected(Rejected::Interfaces(shortened(&named.join(","))));
    }
    policy.remarks.extend(ignored_labels(pod, labels));
    Wanted::Enrolled(Box::new(policy))
}

fn check_tproxy(policy: &Policy, mesh: &Mesh) -> Result<(), Rejected> {
    if matches!(policy.dialect, Dialect::V1_1 | Dialect::V1_5) {
        return Err(Rejected::OldTproxy(policy.dialect));
    }
    if policy.dialect == Dialect::Ambient {
        let is_possible = mesh.sees_interfaces;
        return is_possible
            .then_some(())
            .ok_or(Rejected::AmbientWithoutInterfaces);
    }
    if !policy.virtual_interfaces.is_empty() {
        let names = shortened(&policy.virtual_interfaces.join(","));
        return Err(Rejected::TproxyWithVirtualInterfaces(names));
    }
    if !mesh.sees_interfaces {
        return Err(Rejected::TproxyWithoutInterfaces);
    }
    Ok(())
}

/// Why the pod's sockets are not the node's, if its runtime class or the handler of that has a name that gVisor, Kata
/// Containers and other runtimes with virtual machines document. A class may have any name; handlers of the same runtime
/// are named alike.
fn sandboxed(pod: &PodFacts, handler: Option<&str>) -> Option<Rejected> {
    const NAMES: [&str; 6] = ["gvisor", "runsc", "kata", "firecracker", "peerpod", "urunc"];
    let is_sandbox = |name: &str| {
        let lower = name.to_ascii_lowercase();
        NAMES.iter().any(|name| lower.contains(name))
    };
    let class = pod.spec.runtime_class_name.as_deref()?;
    if is_sandbox(class) {
        return Some(Rejected::Sandboxed(shortened(class)));
    }
    let handler = handler.filter(|handler| is_sandbox(handler))?;
    Some(Rejected::SandboxedBy {
        class: shortened(class),
        handler: shortened(handler),
    })
}

/// Whether the pod's status says that some of its containers have not started yet.
#[must_use]
pub fn is_starting(pod: &PodFacts) -> bool {
    matches!(pod.status.phase.as_deref(), None | Some("Pending"))
}

/// Whether istio-cni would have the pod in ambient mode. Waypoints, gateways and ztunnel have the label `none` themselves.
fn is_ambient(pod: &PodFacts, labels: NamespaceLabels<'_>) -> bool {
    let own = pod.meta.labels.dataplane_mode.as_deref();
    let is_chosen = [own, labels.dataplane_mode].contains(&Some("ambient"));
    let status = pod.meta.annotations.get(ambient::SIDECAR);
    is_chosen && own != Some("none") && status.is_none_or(str::is_empty)
}

fn skipped(pod: &PodFacts, namespace: NamespaceLabels<'_>, mesh: &Mesh) -> Option<Skipped> {
    // Reasons in the pod itself come first: no label changes them.
    if pod.spec.host_network == Some(true) {
        return Some(Skipped::HostNetwork);
    }
    let sidecar = pod.meshes().next();
    match sidecar {
        None if mesh.ambient && is_ambient(pod, namespace) => {}
        None if pod.is_proxyless() => return Some(Skipped::Proxyless),
        None if mesh.ambient => return Some(Skipped::NotAmbient),
        None => return Some(Skipped::NoSidecar),
        Some(whose) if !mesh.served.contains(&whose) => return Some(Skipped::OtherMesh(whose)),
        Some(whose) => {
            if let Some(reason) = skipped_by_mesh(pod, whose) {
                return Some(reason);
            }
        }
    }
    if is_completed(pod) {
        return Some(Skipped::Completed);
    }
    let labels = interception_labels(pod, namespace);
    let holder = |value| labels.iter().find(|it| it.0 == value).map(|it| it.1);
    if let Some(holder) = holder("disabled") {
        return Some(Skipped::OptedOut(holder));
    }
    // The label of ambient mode is an opt-in.
    if sidecar.is_none() || mesh.enroll == Enroll::Injected || holder("enabled").is_some() {
        return None;
    }
    Some(match labels.first() {
        Some((label, holder)) => Skipped::OtherLabel(shortened(label), *holder),
        None => Skipped::NotOptedIn,
    })
}

/// The values of [`LABEL`] that a pod is selected by, its own first.
fn interception_labels<'a>(
    pod: &'a PodFacts,
    namespace: NamespaceLabels<'a>,
) -> Vec<(&'a str, Holder)> {
    let own = pod.meta.labels.interception.as_deref();
    let own = own.map(|label| (label, Holder::Pod));
    let others = namespace
        .interception
        .map(|label| (label, Holder::Namespace));
    own.into_iter().chain(others).collect()
}

/// Remarks on labels that say nothing, of a pod that is enrolled without them.
fn ignored_labels(pod: &PodFacts, namespace: NamespaceLabels<'_>) -> Vec<String> {
    let labels = interception_labels(pod, namespace).into_iter();
    let ignored = labels.filter(|(label, _)| !["enabled", "disabled"].contains(label));
    let remark = |(label, holder): (&str, Holder)| {
        let label = shortened(label);
        format!(
            "label {LABEL} is {label:?} on {holder} and has no effect; write \"enabled\" or \"disabled\""
        )
    };
    ignored.map(remark).collect()
}

/// What a mesh's own injector says of a pod with its sidecar.
fn skipped_by_mesh(pod: &PodFacts, mesh: MeshName) -> Option<Skipped> {
    let annotation = |name: &str| pod.meta.annotations.get(name);
    match mesh {
        MeshName::Istio => {
            if pod.sidecar_of(mesh).is_some_and(is_gateway) {
                return Some(Skipped::Gateway);
            }
            let inject = pod.meta.labels.inject.as_deref();
            let inject = inject.or_else(|| annotation(INJECT));
            let is_off = inject.and_then(boolean) == Some(false);
            is_off.then_some(Skipped::NotInjected)
        }
        MeshName::Linkerd | MeshName::Ambient => None,
        MeshName::Kuma => {
            let is_injected = annotation(kuma::INJECTED) == Some("true");
            (!is_injected).then_some(Skipped::NotOfInjector(kuma::INJECTED, mesh))
        }
        // Its gateways have containers of the same names.
        MeshName::Consul => {
            if !consul::STATUS.iter().any(|name| annotation(name).is_some()) {
                return Some(Skipped::NotOfInjector(consul::STATUS[0], mesh));
            }
            let is_transparent = annotation(consul::TRANSPARENT).is_some_and(|it| !it.is_empty());
            (!is_transparent).then_some(Skipped::NotTransparent(consul::TRANSPARENT))
        }
    }
}

/// Whether the API server says that the pod's containers have ended. Kubelet says so of an evicted pod while
/// its processes still run.
#[must_use]
pub fn is_completed(pod: &PodFacts) -> bool {
    matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Whether the proxy serves something else than an app beside it: `proxy router`, `proxy waypoint`.
fn is_gateway(sidecar: &ContainerFacts) -> bool {
    let mut words = sidecar.words.iter().skip_while(|word| *word != "proxy");
    let kind = words.nth(1).filter(|word| !word.starts_with('-'));
    kind.is_some_and(|kind| kind != "sidecar")
}

#[cfg(test)]
mod tests;
