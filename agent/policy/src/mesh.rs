//! What the mesh's operator decides for all pods: which to take, and defaults for what a pod's own
//! manifest leaves open.

mod defaults;

pub use self::defaults::{DefaultFlag, defaults, read};
use crate::{inputs::Inputs, select::Enroll};

/// What holds for every pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Mesh {
    /// Which sidecar pods to take.
    pub enroll: Enroll,
    /// What becomes of pods that name virtual interfaces.
    pub virtual_interfaces: VirtualInterfaces,
    /// Whether the node can tell on which interface a connection arrives (Linux 5.17).
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

/// What becomes of pods whose policy names virtual interfaces (`-k`). Traffic that only passes
/// through such a pod, from a VM or a nested container, is not seen by socket hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum VirtualInterfaces {
    /// They are not enrolled
    Refuse,
    /// They are enrolled; what is delivered in the pod follows the rules, what passes through it is
    /// left alone
    LocalOnly,
}
