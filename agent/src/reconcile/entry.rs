//! What is remembered of a pod.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::enrollment::Enrollment;
use crate::{api::PodState, cni::attach::Answer};
use sidetrack_policy::{Policy, manifest::NetnsRef};

/// How long a pod that waits is looked for on every turn; then every [`PATIENT_TRY`].
pub(super) const EAGER: Duration = Duration::from_secs(60);
pub(super) const PATIENT_TRY: Duration = Duration::from_secs(5);

/// When to look first for a sidecar that listens without our knowing; then ever less often.
pub(super) const FIRST_LOOK: Duration = Duration::from_secs(5);
pub(super) const LONGEST_LOOK: Duration = Duration::from_secs(300);

/// A pod the agent knows of.
#[derive(Debug)]
pub struct Entry {
    /// Where its manifest is.
    pub origin: String,
    /// Its UID, if the manifest has one.
    pub uid: Option<String>,
    /// What becomes of it.
    pub state: PodState,
    /// Why, unless all is well.
    pub reason: Option<String>,
    /// Its place in the kernel, when enrolled.
    pub(super) enrollment: Option<Enrollment>,
    pub(super) goal: Option<Goal>,
    pub(super) look: Look,
    /// Nobody lists it any more, and it still runs.
    pub(super) unlisted: bool,
    /// It has been enrolled before.
    pub(super) started: bool,
    /// Its namespace's labels are not known, or may be out of date.
    pub(super) unsure: bool,
    /// It programs iptables by itself.
    pub(super) has_istio_init: bool,
    /// Since when it waits for something that is not there.
    pub(super) waiting: Option<Instant>,
    /// When to try again.
    pub(super) next_try: Instant,
}

/// When to look for its sidecar's listeners, as long as none is known or one is missing.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) pause: Duration,
    /// Families and ports of those that were known at the last look.
    pub(super) known: BTreeSet<(u16, u16)>,
}

impl Default for Look {
    fn default() -> Self {
        Self {
            at: Instant::now() + FIRST_LOOK,
            pause: FIRST_LOOK,
            known: BTreeSet::new(),
        }
    }
}

/// What an enrolled pod is to look like.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    pub(super) place: NetnsRef,
    pub(super) policy: Policy,
    /// Whether the pod is only beginning to run, as far as its manifest tells.
    pub(super) starting: bool,
}

impl Entry {
    /// Its place in the kernel, when enrolled.
    pub(crate) fn enrollment(&self) -> Option<&Enrollment> {
        self.enrollment.as_ref()
    }

    pub(super) fn is_settled(&self) -> bool {
        match (&self.goal, &self.enrollment) {
            (Some(goal), Some(enrollment)) => {
                enrollment.policy() == &goal.policy
                    && enrollment.is_at(&goal.place)
                    && !enrollment.is_stale()
            }
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// What a pod is told that is to start and is not enrolled.
    pub(super) fn refused(&self) -> Answer {
        let reason = self.reason.as_deref().unwrap_or("it is not enrolled");
        if self.has_istio_init && self.enrollment.is_none() {
            return Answer::NotTaken(format!("{reason}; it is left to its istio-init"));
        }
        Answer::Refused(reason.to_owned())
    }

    pub(super) fn settle(&mut self, state: PodState, reason: Option<String>) {
        self.state = state;
        self.reason = reason;
    }
}
