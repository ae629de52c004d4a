//! All pods of a source at one time.

use sidetrack_policy::manifest::{Document, Problem};

/// The pods of the API server or of a directory, as they are now.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The pods. Of two documents for one pod the first counts.
    pub pods: Vec<Document>,
    /// Documents that could not be used.
    pub problems: Vec<Problem>,
    /// Whether every document was read at least once since the agent started. Only then is a pod
    /// that is not listed known to be gone.
    pub complete: bool,
    /// Whether a pod that is not listed stays enrolled while its processes run. An API object may be
    /// deleted by force, or be missing from a restored API server. A manifest is removed on purpose.
    pub running_counts: bool,
}
