//! What is known of a pod, and what has become of it.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_policy::{Policy, manifest::NetnsRef};

use crate::{
    allowance::Allowance,
    cni::CniAnswer,
    node::{Enrollment, Node, Sought},
    selected::Read,
};

/// A waiting pod is tried on every turn for this long, and then once in [`SLOW_RETRY`]: every try
/// looks for the pod's cgroup and processes.
pub(crate) const FAST_RETRIES: Duration = Duration::from_secs(60);
pub(crate) const SLOW_RETRY: Duration = Duration::from_secs(5);

/// The first pause between two searches for a sidecar's listeners. Each search without a result
/// doubles it, up to [`LONGEST_SEARCH_PAUSE`].
pub(crate) const FIRST_SEARCH_PAUSE: Duration = Duration::from_secs(5);
pub(crate) const LONGEST_SEARCH_PAUSE: Duration = Duration::from_secs(300);

/// Changes of a pod's policy that are followed at once.
const MAX_CHANGES: u32 = 5;
/// How often they are followed after that.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);

/// What has become of a pod, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodState {
    /// Its connections are intercepted.
    Enrolled,
    /// It is enrolled with an earlier policy: its newest one was rejected.
    Outdated,
    /// Some of its processes are out of the hooks' reach, or may be: what they connect to is not intercepted.
    Partial,
    /// It is enrolled as soon as what the reason names is there.
    #[default]
    Waiting,
    /// It should be enrolled, and something about it has to be fixed first.
    Rejected,
    /// It is not to be enrolled.
    Skipped,
}

impl PodState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Enrolled,
        Self::Outdated,
        Self::Partial,
        Self::Waiting,
        Self::Rejected,
        Self::Skipped,
    ];

    /// Its name, in JSON and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enrolled => "enrolled",
            Self::Outdated => "outdated",
            Self::Partial => "partial",
            Self::Waiting => "waiting",
            Self::Rejected => "rejected",
            Self::Skipped => "skipped",
        }
    }
}

/// What is wanted of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Desired {
    /// It is to be enrolled.
    Enroll(Box<Goal>),
    /// Its manifest cannot be followed, for this reason: everything stays as it is.
    Keep(Option<String>),
    /// It is not to be enrolled.
    Skip,
    /// It is not listed any more. It is released when its last process has ended.
    Unlisted,
}

/// How a pod is to be enrolled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Goal {
    pub(crate) netns: NetnsRef,
    pub(crate) policy: Arc<Policy>,
    /// Whether the pod is only beginning to run, as far as its manifest says.
    pub(crate) starting: bool,
}

/// What has become of a pod, with what belongs to it.
#[derive(Debug)]
pub(crate) enum State<N: Node> {
    /// It is not to be enrolled; why.
    Skipped(String),
    /// Something it needs is not there yet.
    Waiting {
        /// What it waits for.
        reason: Option<String>,
    },
    /// Something stands against it.
    Rejected {
        /// What.
        reason: Option<String>,
    },
    /// Rows of an earlier agent are active, and this one could not replace them; why.
    OfEarlierAgent {
        /// Why.
        reason: Option<String>,
    },
    /// It is enrolled, with a remark if something about it is not as it should be.
    Enrolled(Box<Enrollment<N>>, Option<String>),
}

/// A pod of the agent's list.
#[derive(Debug)]
pub struct Record<N: Node> {
    /// Where its manifest is.
    pub origin: String,
    /// Its UID, if the manifest has one.
    pub uid: Option<String>,
    /// Whether the pod is being deleted: its processes end, the sidecar's too.
    pub is_terminating: bool,
    pub(crate) desired: Desired,
    pub(crate) state: State<N>,
    /// The namespace in which this agent has last enrolled the pod.
    pub(crate) started_in: Option<NetnsCookie>,
    /// Since when the pod is to be enrolled, until it is.
    pub(crate) wanted_since: Option<Instant>,
    /// Whether the labels of its namespace are unknown, or may be out of date.
    pub(crate) unsure: bool,
    /// The init container with which it programs iptables by itself.
    pub(crate) iptables_init: Option<&'static str>,
    /// Since when the pod is tried again and again, enrolled or not.
    pub(crate) trying_since: Option<Instant>,
    /// When to try again.
    pub(crate) next_try: Instant,
    pub(crate) search: ListenerSearch,
    /// How often its policy may change.
    pub(crate) changes: Allowance,
    /// How often it may be said why its manifest is not followed.
    rejections: Allowance,
    /// How often it may be said what it waits for.
    pub(crate) waits: Allowance,
    /// What was said of that last.
    pub(crate) said: Option<String>,
    /// The servers of its resolv.conf, once they were read.
    pub(crate) dns_servers: Option<Vec<IpAddr>>,
    /// What was read last.
    pub(crate) read: Option<Read>,
}

/// When to search for a sidecar's listeners, as long as none is known or one is missing.
#[derive(Clone, Debug)]
pub(crate) struct ListenerSearch {
    pub(crate) at: Instant,
    pub(crate) pause: Duration,
    /// Families and ports of those that were known at the last search.
    pub(crate) known: BTreeSet<(u16, u16)>,
}

impl ListenerSearch {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            at: now + FIRST_SEARCH_PAUSE,
            pause: FIRST_SEARCH_PAUSE,
            known: BTreeSet::new(),
        }
    }
}

impl<N: Node> Record<N> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            origin: String::new(),
            uid: None,
            is_terminating: false,
            desired: Desired::Keep(None),
            state: State::Waiting { reason: None },
            started_in: None,
            wanted_since: None,
            unsure: false,
            iptables_init: None,
            trying_since: None,
            next_try: now,
            search: ListenerSearch::new(now),
            changes: Allowance::new(MAX_CHANGES, CHANGE_INTERVAL),
            rejections: Allowance::new(MAX_CHANGES, CHANGE_INTERVAL),
            waits: Allowance::new(MAX_CHANGES, CHANGE_INTERVAL),
            said: None,
            dns_servers: None,
            read: None,
        }
    }

    /// Whether people are to hear why its manifest is not followed: if that is new, and they have not heard too much.
    pub(crate) fn is_to_be_said(&mut self, reason: &str, now: Instant) -> bool {
        let is_new = self.said.as_deref() != Some(reason) && self.rejections.take(now).is_ok();
        if is_new {
            self.said = Some(reason.to_owned());
        }
        is_new
    }

    /// The pod is to be enrolled. A pod that was to be enrolled before, or is enrolled, has not begun to
    /// wait now.
    pub(crate) fn now_wanted(&mut self, now: Instant) {
        if self.enrollment().is_none() && !matches!(self.desired, Desired::Enroll(_)) {
            self.wanted_since.get_or_insert(now);
        }
    }

    /// What has become of it.
    #[must_use]
    pub fn state(&self) -> PodState {
        match self.state {
            State::Skipped(_) => PodState::Skipped,
            State::Waiting { .. } => PodState::Waiting,
            State::Rejected { .. } => PodState::Rejected,
            State::OfEarlierAgent { .. } | State::Enrolled(..) if self.is_outdated() => {
                PodState::Outdated
            }
            State::OfEarlierAgent { .. } | State::Enrolled(..) => PodState::Enrolled,
        }
    }

    /// Whether an enrolled pod has not got what its newest manifest asks for, and why is known.
    fn is_outdated(&self) -> bool {
        match &self.desired {
            Desired::Keep(reason) => reason.is_some(),
            Desired::Enroll(goal) => {
                let active = self.enrollment().map(|enrollment| &enrollment.policy);
                active.is_some_and(|active| *active != goal.policy) && self.reason().is_some()
            }
            Desired::Skip | Desired::Unlisted => false,
        }
    }

    /// Why, unless it is enrolled and nothing is wrong.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match &self.state {
            State::Skipped(reason) => Some(reason),
            State::Waiting { reason, .. }
            | State::Rejected { reason, .. }
            | State::OfEarlierAgent { reason, .. }
            | State::Enrolled(_, reason) => reason.as_deref(),
        }
    }

    /// The value of an annotation, if it has it; `None` before the pod was read.
    #[must_use]
    pub fn annotation(&self, name: &str) -> Option<Option<&str>> {
        let read = self.read.as_ref()?;
        Some(read.pod.meta.annotations.get(name))
    }

    /// How its namespace is looked for among its processes.
    #[must_use]
    pub fn sought<'a>(&self, uid: &'a str, known: Option<NetnsInode>) -> Sought<'a> {
        let read = self.read.as_ref();
        Sought {
            uid,
            own_users: read.is_some_and(|read| read.pod.spec.host_users == Some(false)),
            known,
        }
    }

    /// Its service account, once the pod was read.
    #[must_use]
    pub fn service_account(&self) -> Option<&str> {
        let read = self.read.as_ref()?;
        // The API server sets it to this where a pod names none.
        let named = read.pod.spec.service_account_name.as_deref();
        Some(named.unwrap_or("default"))
    }

    /// Its enrollment by this agent.
    #[must_use]
    pub fn enrollment(&self) -> Option<&Enrollment<N>> {
        match &self.state {
            State::Enrolled(enrollment, _) => Some(enrollment),
            _ => None,
        }
    }

    pub(crate) fn enrollment_mut(&mut self) -> Option<&mut Enrollment<N>> {
        match &mut self.state {
            State::Enrolled(enrollment, _) => Some(enrollment),
            _ => None,
        }
    }

    /// Takes the enrollment out; the pod waits then.
    pub(crate) fn take_enrollment(&mut self) -> Option<Box<Enrollment<N>>> {
        let waiting = State::Waiting { reason: None };
        match std::mem::replace(&mut self.state, waiting) {
            State::Enrolled(enrollment, _) => {
                if matches!(self.desired, Desired::Keep(_)) {
                    // In its next namespace the previous policy stays active as well.
                    self.desired = Desired::Enroll(Box::new(Goal {
                        netns: enrollment.netns.clone(),
                        policy: enrollment.policy.clone(),
                        starting: false,
                    }));
                }
                Some(enrollment)
            }
            other => {
                self.state = other;
                None
            }
        }
    }

    /// How the pod is to be enrolled. A pod whose manifest cannot be followed stays as it is enrolled.
    pub(crate) fn goal(&self) -> Option<Goal> {
        match &self.desired {
            Desired::Enroll(goal) => Some(Goal::clone(goal)),
            Desired::Keep(_) => self.enrollment().map(|enrollment| Goal {
                netns: enrollment.netns.clone(),
                policy: enrollment.policy.clone(),
                starting: false,
            }),
            Desired::Skip | Desired::Unlisted => None,
        }
    }

    /// The policies that are kept for it.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        let wanted = match &self.desired {
            Desired::Enroll(goal) => Some(&goal.policy),
            Desired::Keep(_) | Desired::Skip | Desired::Unlisted => None,
        };
        let active = self.enrollment().map(|enrollment| &enrollment.policy);
        wanted.into_iter().chain(active)
    }

    /// Whether the pod is enrolled as it is to be, as far as its record says; `None` if nothing is to be
    /// done for it.
    pub(crate) fn matches_goal(&self) -> Option<bool> {
        let enrollment = self.enrollment();
        match &self.desired {
            Desired::Enroll(goal) => Some(enrollment.is_some_and(|enrollment| {
                enrollment.policy == goal.policy && enrollment.netns == goal.netns
            })),
            Desired::Keep(_) => enrollment.map(|_| true),
            Desired::Skip | Desired::Unlisted => None,
        }
    }

    /// Notes why an attempt to enroll the pod has failed.
    pub(crate) fn settle(&mut self, next: PodState, has_earlier: bool, reason: Option<String>) {
        match (&mut self.state, next) {
            (State::Enrolled(_, remark), _) => *remark = reason,
            (state, _) if has_earlier => *state = State::OfEarlierAgent { reason },
            (state, PodState::Waiting) => *state = State::Waiting { reason },
            (state, _) => *state = State::Rejected { reason },
        }
    }

    /// The answer to the CNI plugin for a pod that is to start and is not enrolled.
    pub(crate) fn refused(&self) -> CniAnswer {
        let reason = self.reason().unwrap_or("it is not enrolled");
        if let (Some(init), None) = (self.iptables_init, self.enrollment()) {
            return CniAnswer::Skipped(format!("{reason}; its {init} sets up redirection instead"));
        }
        CniAnswer::Refused(reason.to_owned())
    }
}

#[cfg(test)]
mod tests;
