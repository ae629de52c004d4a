//! Why a pod's policy cannot be read.

/// A value that cannot be used. The text names where it came from and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin} is {value:?}: {problem}")]
pub struct PolicyError {
    /// The annotation, argument or variable.
    pub origin: String,
    /// The raw value.
    pub value: String,
    /// What is wrong, and what to write instead.
    pub problem: String,
}
