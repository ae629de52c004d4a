//! Events for people: what happened to a pod.

use sidetrack_policy::PodRef;

/// Reason of an Event: the pod is enrolled.
pub const ENROLLED: &str = "Enrolled";
/// Another policy is active.
pub const POLICY_CHANGED: &str = "PolicyChanged";
/// The pod's manifest cannot be followed.
pub const POLICY_REJECTED: &str = "PolicyRejected";
/// The pod's manifest can be followed again, and asks for what is active.
pub const POLICY_ACCEPTED: &str = "PolicyAccepted";
/// An annotation that looks like a known one has no effect.
pub const UNKNOWN_ANNOTATION: &str = "UnknownAnnotation";
/// The pod could not be enrolled.
pub const NOT_ENROLLED: &str = "NotEnrolled";
/// The pod is not intercepted any more.
pub const RELEASED: &str = "Released";

/// What a reason ends with if the pod is intercepted nevertheless.
pub(crate) const PREVIOUS_STAYS: &str = "; the previous policy stays active";

/// Something that happened to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// The pod.
    pub pod: PodRef,
    /// Its UID. An Event cannot be attached to a pod without one.
    pub uid: Option<String>,
    /// The reason in one word, as `kubectl describe pod` shows it.
    pub reason: &'static str,
    /// The reason in a sentence.
    pub note: String,
    /// Whether a person has to act.
    pub warning: bool,
}
