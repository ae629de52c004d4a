//! The pods a source knows, handed to the reconciler as a whole.

use sidetrack_policy::manifest::{Document, Problem};

/// All pods of a source at one time.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// Pods; the oldest manifest comes first.
    pub pods: Vec<Document>,
    /// What could not be used.
    pub problems: Vec<Problem>,
    /// Whether everything could be read since the agent started. Only then is a pod that is not
    /// listed known to be gone.
    pub complete: bool,
    /// Whether a pod that is not listed and still has processes counts as present. An API object may
    /// be deleted by force, or be missing from a restored API server; a removed manifest is meant.
    pub running_counts: bool,
}
