//! What a node's kernel can do, by its version. `sidetrack doctor` on the node is more exact: distributions port
//! facilities back.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use sidetrack_policy::mesh::{Enroll, Mesh};

/// A version of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel {
    major: u32,
    minor: u32,
}

/// The oldest that sidetrack needs, see docs/kernels.md.
const OLDEST: Kernel = Kernel::new(5, 15);
/// The oldest that reports the interface of inbound connections.
const INTERFACES: Kernel = Kernel::new(5, 17);
/// What older kernels do not have, each with the oldest that has it.
const MISSING_BEFORE: [(Kernel, &str); 4] = [
    (
        INTERFACES,
        "pods whose policy names interfaces, and those in mode TPROXY or in ambient mode, are not enrolled",
    ),
    (INTERFACES, "IPv6 connections take longer to make"),
    (
        Kernel::new(5, 18),
        "the errno of a connect that sidetrack refuses is EPERM",
    ),
    (
        Kernel::new(5, 19),
        "an application with an MPTCP socket sees its sidecar as the peer",
    ),
];

impl Kernel {
    const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Reads a release such as `6.1.0-30-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }

    /// Whether sidetrack can run, by its release; `None` if that says too little.
    pub fn is_enough(self, release: &str) -> Option<bool> {
        let is_new = self >= OLDEST;
        (is_new || !has_backports(release)).then_some(is_new)
    }

    /// Whether rules for interfaces work.
    pub fn sees_interfaces(self) -> bool {
        self >= INTERFACES
    }

    /// What does not work, although sidetrack runs.
    pub fn restriction(self) -> Option<String> {
        let missing = MISSING_BEFORE.iter().filter(|(since, _)| self < *since);
        let missing: Vec<&str> = missing.map(|(_, effect)| *effect).collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}

/// Whether a release is one of RHEL 9's, whose number is that of none of its facilities.
fn has_backports(release: &str) -> bool {
    release.contains(".el9")
}

/// How agents on a node with this kernel choose pods, if they have no settings of their own.
pub fn mesh_on(kernel: Option<Kernel>, enroll: Enroll) -> Mesh {
    Mesh {
        sees_interfaces: kernel.is_none_or(Kernel::sees_interfaces),
        ..Mesh::new(enroll)
    }
}

/// The kernels of nodes, as far as it is known what they can do.
pub fn kernels<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeMap<String, Kernel> {
    let known = nodes.into_iter().filter_map(|node| {
        let (release, kernel) = kernel_of(node)?;
        kernel.is_enough(release)?;
        Some((node.name_any(), kernel))
    });
    known.collect()
}

/// A node's kernel, as kubelet reports it.
pub fn kernel_of(node: &Node) -> Option<(&str, Kernel)> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let release = info.kernel_version.as_str();
    Some((release, Kernel::parse(release)?))
}

#[cfg(test)]
mod tests;
