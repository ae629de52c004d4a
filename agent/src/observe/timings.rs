//! How long things took that pods wait for, as histograms of the metrics page.
//!
//! Their counts never decrease. The reconciler's thread and the control socket write them, scrapes read
//! them.

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

use sidetrack_reconcile::cni::CniAnswer;

/// Upper limits of the buckets in seconds: from a pod that the CNI plugin names to one that has waited
/// as long as kubelet does.
const BUCKETS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// What the agent answers to an ADD of the CNI plugin, as the label `answer`.
const ADD_ANSWERS: [&str; 4] = ["enrolled", "skipped", "refused", "later"];

/// The histograms.
#[derive(Debug)]
pub struct Timings {
    enrollment: Histogram,
    adds: [Histogram; ADD_ANSWERS.len()],
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            enrollment: Histogram::new(BUCKETS),
            adds: ADD_ANSWERS.map(|_| Histogram::new(BUCKETS)),
        }
    }
}

impl Timings {
    /// A pod is enrolled, this long after it was first known to be one to enroll.
    pub fn enrolled(&self, waited: Duration) {
        self.enrollment.observe(waited.as_secs_f64());
    }

    /// An ADD of the CNI plugin was answered after this time.
    pub fn answered_add(&self, answer: &CniAnswer, waited: Duration) {
        let name = match answer {
            CniAnswer::Enrolled => "enrolled",
            CniAnswer::Skipped(_) => "skipped",
            CniAnswer::Refused(_) => "refused",
            CniAnswer::Later(_) => "later",
            // The answer to the other requests.
            CniAnswer::Done => return,
        };
        for (of, histogram) in self.adds() {
            if of == name {
                histogram.observe(waited.as_secs_f64());
            }
        }
    }

    /// From a pod that is known to one that is enrolled.
    #[must_use]
    pub fn enrollment(&self) -> &Histogram {
        &self.enrollment
    }

    /// Waits of the CNI plugin, by what was answered.
    pub fn adds(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        ADD_ANSWERS.into_iter().zip(&self.adds)
    }
}
