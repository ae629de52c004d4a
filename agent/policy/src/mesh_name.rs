//! The meshes.

use std::fmt;

/// A service mesh whose sidecars can be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MeshName {
    /// Istio, and meshes that inject as it does.
    Istio,
    /// Linkerd.
    Linkerd,
    /// Kuma, and Kong Mesh.
    Kuma,
    /// Consul.
    Consul,
    /// Istio's ambient mode, whose proxy is not in the pod.
    Ambient,
}

impl MeshName {
    /// Those with sidecars.
    pub const ALL: [Self; 4] = [Self::Istio, Self::Linkerd, Self::Kuma, Self::Consul];

    /// Its name on the command line and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Istio => "istio",
            Self::Linkerd => "linkerd",
            Self::Kuma => "kuma",
            Self::Consul => "consul",
            Self::Ambient => "ambient",
        }
    }
}

impl fmt::Display for MeshName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
