//! Which mesh's and version's rules apply to a pod: those of the injector that it has been through. istio-iptables changed
//! its rule list five times.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sidetrack_common::policy::{
    DIALECT_LO_UNTOUCHED, DIALECT_LOCAL_CAPTURED, DIALECT_NO_LOCAL_RULES, DIALECT_SELF_EXEMPT,
    DIALECT_SSH_IN, DIALECT_TUNNEL_IN, DIALECT_TUNNEL_OUT,
};

use crate::{
    facts::{ContainerFacts, PodFacts},
    mesh_name::MeshName,
    record::Record,
    text::shortened,
};

pub use crate::names::DIALECT as ANNOTATION;

/// A rule list, named after the first version that had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dialect {
    /// Istio up to 1.2.
    #[serde(rename = "1.1")]
    V1_1,
    /// Istio 1.3 to 1.6.
    #[serde(rename = "1.5")]
    V1_5,
    /// Istio 1.7 to 1.12.
    #[serde(rename = "1.8")]
    V1_8,
    /// Istio 1.13 to 1.17.
    #[serde(rename = "1.13")]
    V1_13,
    /// Istio 1.18 and later.
    #[default]
    #[serde(rename = "current")]
    Current,
    /// linkerd2-proxy-init 2.4.
    #[serde(rename = "linkerd")]
    Linkerd,
    /// Kuma 2.14 and 3.
    #[serde(rename = "kuma")]
    Kuma,
    /// consul-k8s 2.
    #[serde(rename = "consul")]
    Consul,
    /// istio-cni's rules for ambient pods, Istio 1.24 and later.
    #[serde(rename = "ambient")]
    Ambient,
}

impl Dialect {
    /// All; Istio's first, the oldest of them first.
    pub const ALL: [Self; 9] = [
        Self::V1_1,
        Self::V1_5,
        Self::V1_8,
        Self::V1_13,
        Self::Current,
        Self::Linkerd,
        Self::Kuma,
        Self::Consul,
        Self::Ambient,
    ];

    /// Whose rules they are.
    #[must_use]
    pub const fn mesh(self) -> MeshName {
        match self {
            Self::Linkerd => MeshName::Linkerd,
            Self::Kuma => MeshName::Kuma,
            Self::Consul => MeshName::Consul,
            Self::Ambient => MeshName::Ambient,
            Self::V1_1 | Self::V1_5 | Self::V1_8 | Self::V1_13 | Self::Current => MeshName::Istio,
        }
    }

    /// The dialect of a version of Istio 1.
    #[must_use]
    pub const fn of_minor(minor: u32) -> Self {
        match minor {
            0..=2 => Self::V1_1,
            3..=6 => Self::V1_5,
            7..=12 => Self::V1_8,
            13..=17 => Self::V1_13,
            _ => Self::Current,
        }
    }

    /// The `DIALECT_*` bits the kernel reads.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V1_1 => DIALECT_LOCAL_CAPTURED | DIALECT_SSH_IN,
            Self::V1_5 => DIALECT_SELF_EXEMPT | DIALECT_SSH_IN,
            Self::V1_8 => DIALECT_SELF_EXEMPT | DIALECT_SSH_IN | DIALECT_TUNNEL_IN,
            Self::V1_13 => DIALECT_SELF_EXEMPT | DIALECT_TUNNEL_IN,
            Self::Current => DIALECT_SELF_EXEMPT | DIALECT_TUNNEL_IN | DIALECT_TUNNEL_OUT,
            Self::Linkerd => DIALECT_NO_LOCAL_RULES | DIALECT_LO_UNTOUCHED,
            Self::Kuma => DIALECT_SELF_EXEMPT,
            Self::Consul => DIALECT_NO_LOCAL_RULES,
            Self::Ambient => DIALECT_NO_LOCAL_RULES | DIALECT_LO_UNTOUCHED | DIALECT_TUNNEL_IN,
        }
    }

    /// Whether the proxy calls the app from 127.0.0.6 and ::6, which are then exempt. The mesh's own program adds ::6 to lo.
    #[must_use]
    pub const fn exempts_self(self) -> bool {
        self.bits() & DIALECT_SELF_EXEMPT != 0
    }

    /// The mark of the proxy's sockets, in a mesh whose rules know it by that.
    #[must_use]
    pub const fn proxy_mark(self) -> Option<u32> {
        match self {
            Self::Ambient => Some(0x539),
            _ => None,
        }
    }

    /// The sidecar's own ports that are exempt when `-b` is `*`, as injectors list them, without
    /// the status port.
    #[must_use]
    pub const fn sidecar_ports(self) -> &'static [u16] {
        match self {
            Self::V1_1 => &[],
            Self::V1_5 => &[15090],
            _ => &[15090, 15021],
        }
    }

    /// The inbound port; `given` is that of `-z`. Version 1.1 had one port for both directions. In version
    /// 1.5 (Istio 1.3 to 1.6) `-z` counts only if all ports are captured; others go to the outbound port.
    #[must_use]
    pub fn inbound_port(self, outbound_port: u16, captures_all: bool, given: Option<u16>) -> u16 {
        match self {
            Self::V1_5 if !captures_all => outbound_port,
            Self::V1_1 => given.unwrap_or(outbound_port),
            _ => given.unwrap_or(15006),
        }
    }

    /// The dialect of a pod's images: the sidecar's tag, else istio-init's, also of one that the webhook
    /// removed.
    #[must_use]
    pub fn of_pod(pod: &PodFacts) -> Option<Self> {
        let of_container = |container: &ContainerFacts| of_image(container.image.as_deref()?);
        if let Some(dialect) = pod.sidecar().and_then(of_container) {
            return Some(dialect);
        }
        if let Some(init) = pod.istio_init() {
            return of_container(init);
        }
        // A record that cannot be read is reported by `Policy::of_pod`.
        let removed = Record::of_annotation(pod).ok()??;
        of_image(removed.image.as_deref()?)
    }
}

/// The dialect of an image by its tag.
pub(crate) fn of_image(image: &str) -> Option<Dialect> {
    let image = image
        .split_once('@')
        .map_or(image, |(image, _digest)| image);
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    let (_, tag) = name.split_once(':')?;
    let has_own_numbers = OPENSHIFT.iter().any(|folder| image.contains(folder));
    let minor = match has_own_numbers {
        true => openshift_minor(tag),
        false => minor(tag),
    };
    minor.map(Dialect::of_minor)
}

/// Folders of OpenShift Service Mesh and of the project behind it.
const OPENSHIFT: [&str; 2] = ["openshift-service-mesh/", "maistra/"];

/// The minor version of Istio 1 in a tag of OpenShift Service Mesh, which has numbers of its own: its release notes name
/// the version of Istio.
fn openshift_minor(tag: &str) -> Option<u32> {
    const OF_2: [u32; 7] = [6, 9, 12, 14, 16, 18, 20];
    let (major, rest) = version(tag).split_once('.')?;
    match (major, number(rest)?) {
        ("1", 0) => Some(1),
        ("1", 1) => Some(4),
        // Images of version 3 have Istio's numbers.
        ("1", minor) => Some(minor),
        ("2", minor) => Some(OF_2.get(minor as usize).copied().unwrap_or(20)),
        ("3", _) => Some(24),
        _ => None,
    }
}

/// What follows the prefixes of a tag.
fn version(tag: &str) -> &str {
    let version = tag.strip_prefix("release-").unwrap_or(tag);
    version.strip_prefix('v').unwrap_or(version)
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    text[..digits.unwrap_or(text.len())].parse().ok()
}

/// The minor version in a tag such as `1.8.1`, `v1.12.4`, `1.18-alpha.0`, `release-1.1-latest-daily`.
fn minor(tag: &str) -> Option<u32> {
    number(version(tag).strip_prefix("1.")?)
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_1 => "1.1",
            Self::V1_5 => "1.5",
            Self::V1_8 => "1.8",
            Self::V1_13 => "1.13",
            Self::Current => "current",
            Self::Linkerd => "linkerd",
            Self::Kuma => "kuma",
            Self::Consul => "consul",
            Self::Ambient => "ambient",
        })
    }
}

impl FromStr for Dialect {
    type Err = String;

    /// `current`, or any version of Istio 1 such as `1.12`. Other meshes are known by the pod.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "current" {
            return Ok(Self::Current);
        }
        minor(text).map(Self::of_minor).ok_or_else(|| {
            format!(
                "{:?} is not a dialect; write an Istio version such as 1.12, or current",
                shortened(text)
            )
        })
    }
}

#[cfg(test)]
mod tests;
