//! What is tried again, and how often.

use std::time::Duration;

use sidetrack_policy::PodRef;

use super::{Core, converge};
use crate::{
    node::{Enrollment, Link as _, Node},
    policies::SHORT,
    state::{Desired, FAST_RETRIES, Record, SLOW_RETRY},
};

/// How often listeners that the kernel does not know are searched for, at most.
const ADOPTION_PERIOD: Duration = Duration::from_secs(2);

impl<N: Node> Core<N> {
    /// Tries again what could not be done, notices namespaces that vanished or were replaced, and
    /// removes what is out of use. To be called twice a second, and followed by [`Core::proceed`].
    pub async fn retry(&mut self) {
        self.turn.begin();
        self.retry_removals().await;
        self.release_ended().await;
        self.refresh_without_goal().await;
        self.tidy_policies();
        let now = self.node.now();
        let due: Vec<PodRef> = self
            .pods
            .iter()
            .filter(|(_, record)| record.next_try <= now && !self.is_settled(record))
            .map(|(name, _)| name.clone())
            .collect();
        let mut enrolled = Vec::new();
        let mut processes = None;
        for name in due {
            // Those with short lists first: they take little, and there are more of them.
            if self.has_long_lists(&name) {
                self.turn.push(name);
            } else {
                self.try_again(&name, &mut processes, &mut enrolled).await;
            }
        }
        self.converge_long(&mut processes, &mut enrolled).await;
        if self.next_adoption <= now {
            self.next_adoption = now + ADOPTION_PERIOD;
            enrolled.extend(self.without_listener());
        }
        self.adopt(&enrolled).await;
    }

    pub(super) fn has_long_lists(&self, name: &PodRef) -> bool {
        match self.pods.get(name).map(|record| &record.desired) {
            Some(Desired::Enroll(goal)) => goal.policy.entries() > SHORT,
            _ => false,
        }
    }

    /// Converges a pod; adds it to those that were enrolled if it was.
    pub(super) async fn try_again(
        &mut self,
        name: &PodRef,
        processes: &mut Option<N::Processes>,
        enrolled: &mut Vec<PodRef>,
    ) {
        let before = self.shown(name);
        self.converge(name, processes).await;
        self.slow_down(name);
        let after = self.shown(name);
        if before.cookie != after.cookie {
            enrolled.push(name.clone());
        }
        self.changed |= before != after;
    }

    /// Reads addresses and routes again, where that has failed, of pods that have no goal: those that are departing, and
    /// those that are not listed any more and still run.
    async fn refresh_without_goal(&mut self) {
        let unlisted = self.pods.values_mut();
        let unlisted = unlisted.filter(|record| record.desired == Desired::Unlisted);
        let unlisted = unlisted.filter_map(Record::enrollment_mut);
        let departing = self.held.departing_mut().map(|(_, it)| it);
        let now = self.node.now();
        for enrollment in departing.chain(unlisted) {
            let is_due = enrollment.refresh_at.is_none_or(|at| at <= now);
            if is_due && (enrollment.stale || !enrollment.link.is_alive()) {
                // Why it has failed was logged when it failed first. It may have kept the others waiting.
                let result = converge::refresh(&mut self.node, enrollment).await;
                let again = result.err().map(|_| now + SLOW_RETRY);
                enrollment.refresh_at = enrollment.refresh_at.max(again);
            }
        }
    }

    /// Whether the path of an enrolled pod's namespace leads to it, without a doubt.
    pub(super) fn leads_there(&self, enrollment: &Enrollment<N>) -> bool {
        enrollment.doubt.is_none() && self.node.inode_at(&enrollment.path) == Some(enrollment.inode)
    }

    /// Whether nothing has to be done for a pod, as far as a look at its path shows.
    pub(super) fn is_settled(&self, record: &Record<N>) -> bool {
        let Some(matches) = record.matches_goal() else {
            return true;
        };
        matches
            && record.enrollment().is_some_and(|enrollment| {
                self.leads_there(enrollment) && !self.is_stale(enrollment)
            })
    }

    /// A pod that was tried for long is tried less often: every try looks for the pod's cgroup and processes.
    pub(super) fn slow_down(&mut self, name: &PodRef) {
        let now = self.node.now();
        let settled = self
            .pods
            .get(name)
            .is_some_and(|record| self.is_settled(record));
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        if settled {
            record.trying_since = None;
            return;
        }
        let since = *record.trying_since.get_or_insert(now);
        if now.saturating_duration_since(since) > FAST_RETRIES {
            record.next_try = now + SLOW_RETRY;
        }
    }
}
