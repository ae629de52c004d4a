//! Settings for all pods of the mesh: which to enroll, and defaults for what a pod's own manifest
//! leaves open.

mod defaults;

pub use self::defaults::{DefaultFlag, check, defaults, read};
pub use crate::mesh_name::MeshName;

use crate::inputs::Inputs;

/// Which sidecar pods to enroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Enroll {
    /// Those whose label opts in.
    #[cfg_attr(feature = "clap", value(alias = "labelled"))]
    Labeled,
    /// All but those whose label opts out.
    Injected,
}

/// Whose sidecars are served, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Served {
    /// Each pod's own mesh, by the names of its containers
    Auto,
    /// Istio, and meshes that inject as it does
    Istio,
    /// Linkerd
    Linkerd,
    /// Kuma and Kong Mesh
    Kuma,
    /// Consul
    Consul,
}

impl Served {
    /// The meshes of some of these.
    ///
    /// # Errors
    /// If they contradict each other.
    pub fn meshes(all: &[Self]) -> Result<Vec<MeshName>, String> {
        if all.contains(&Self::Auto) && all.iter().any(|it| *it != Self::Auto) {
            return Err(
                "--mesh auto stands for all meshes; name them, or write auto alone".to_owned(),
            );
        }
        let of_each = |served: &Self| match served {
            Self::Auto => MeshName::ALL.to_vec(),
            Self::Istio => vec![MeshName::Istio],
            Self::Linkerd => vec![MeshName::Linkerd],
            Self::Kuma => vec![MeshName::Kuma],
            Self::Consul => vec![MeshName::Consul],
        };
        Ok(match all {
            [] => MeshName::ALL.to_vec(),
            all => all.iter().flat_map(of_each).collect(),
        })
    }
}

/// Settings for every pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// Which sidecar pods to enroll.
    pub enroll: Enroll,
    /// Whose sidecars.
    pub served: Vec<MeshName>,
    /// Whether pods in Istio's ambient mode are served.
    pub ambient: bool,
    /// What happens to traffic that passes through pods.
    pub virtual_interfaces: VirtualInterfaces,
    /// Whether the node's kernel reports the interface of inbound connections (Linux 5.17).
    pub sees_interfaces: bool,
    /// The weakest source of every pod's policy.
    pub defaults: Inputs,
}

impl Mesh {
    /// Built-in defaults.
    #[must_use]
    pub fn new(enroll: Enroll) -> Self {
        Self {
            enroll,
            served: MeshName::ALL.to_vec(),
            ambient: false,
            virtual_interfaces: VirtualInterfaces::Full,
            sees_interfaces: true,
            defaults: Inputs::default(),
        }
    }
}

/// What happens to traffic that only passes through a pod, from or to a VM or a nested container, and to pods whose
/// policy names virtual interfaces (`-k`). Socket hooks do not see such traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum VirtualInterfaces {
    /// Traffic that passes through a pod follows the rules, too
    Full,
    /// Pods that name virtual interfaces are not enrolled. Traffic that passes through other pods is not redirected
    Refuse,
    /// Traffic to the pod itself follows the rules, traffic that passes through it is not redirected
    LocalOnly,
}

#[cfg(test)]
mod tests;
