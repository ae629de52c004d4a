//! Settings for all pods of the mesh: which to enroll, and defaults for what a pod's own manifest
//! leaves open.

mod defaults;

pub use self::defaults::{DefaultFlag, defaults, read};
use crate::{inputs::Inputs, select::Enroll};

/// Settings for every pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// Which sidecar pods to enroll.
    pub enroll: Enroll,
    /// How pods that name virtual interfaces are handled.
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
            virtual_interfaces: VirtualInterfaces::Refuse,
            sees_interfaces: true,
            defaults: Inputs::default(),
        }
    }
}

/// How pods whose policy names virtual interfaces (`-k`) are handled. Traffic that only passes
/// through such a pod, from a VM or a nested container, is not seen by socket hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum VirtualInterfaces {
    /// They are not enrolled
    Refuse,
    /// They are enrolled; traffic to the pod itself follows the rules, traffic that passes through it
    /// is left alone
    LocalOnly,
}
