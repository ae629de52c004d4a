//! Brings one pod to what is wanted of it: facts, plan, steps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sidetrack_policy::{PodRef, Policy, compiled::CompiledPolicy, manifest::NetnsRef};
use tracing::{error, info, warn};

use super::Core;
use crate::{
    events::{NOT_ENROLLED, POLICY_CHANGED, POLICY_REJECTED, PREVIOUS_STAYS, UNKNOWN_ANNOTATION},
    node::{
        EnrollError, Enrollment, Found, Link as _, NO_PROCESS, Node, NodeError, Processes as _,
    },
    plan::{self, Action, Change, EnrolledFacts, Facts, Location, OnFailure, Step, Steps},
    state::{Desired, Goal, PodState, State},
};

impl<N: Node> Core<N> {
    /// Brings one pod to what is wanted of it.
    pub(super) async fn converge(&mut self, name: &PodRef, processes: &mut Option<N::Processes>) {
        let Some(goal) = self.pods.get(name).and_then(|record| record.goal()) else {
            return;
        };
        let processes = processes.get_or_insert_with(|| self.processes());
        let processes = &*processes;
        let found = self.find(name, &goal.netns, processes);
        let facts = self.facts(name, &goal, &found, processes);
        let mut result = Ok(());
        let mut waits = false;
        let mut stays = None;
        for action in plan::plan(&facts) {
            // A change of policy that fails must not keep addresses and routes from being read again.
            let done = match action {
                Action::Stay(remark) => {
                    stays = Some(remark);
                    Ok(())
                }
                Action::FollowPath => {
                    self.follow_path(name, &goal.netns, &found);
                    Ok(())
                }
                Action::Depart => {
                    self.depart(name, "its network namespace was replaced")
                        .await;
                    Ok(())
                }
                Action::Enroll if self.is_too_soon(name) => Err(NodeError::NotYet(
                    "its labels or its policy change too often; it is enrolled within a second"
                        .to_owned(),
                )
                .into()),
                Action::Enroll => self.enroll(name, &goal, &found, processes).await,
                Action::ChangePolicy if self.is_too_soon(name) => {
                    // The policy that it has stays until then. What is wanted at that time is written.
                    waits = true;
                    Ok(())
                }
                Action::ChangePolicy => self.change_policy(name, &goal, processes).await,
                Action::Refresh if self.is_to_wait(name) => {
                    waits = true;
                    Ok(())
                }
                Action::Refresh => self.refresh(name).await,
            };
            result = result.and(done);
        }
        match (stays, &result) {
            (Some(remark), Ok(())) => self.stay(name, remark),
            // A change that waits is no success.
            (_, Ok(())) if waits => {}
            _ => self.note_result(name, result),
        }
    }

    /// Whether a pod's policy has changed too often; it is tried again when it may.
    fn is_too_soon(&mut self, name: &PodRef) -> bool {
        let now = self.node.now();
        let Some(record) = self.pods.get_mut(name) else {
            return false;
        };
        let Err(later) = record.changes.clone().take(now) else {
            return false;
        };
        record.next_try = later;
        true
    }

    /// Whether a pod's namespace was read a moment ago, and that took long; it is tried again when it may.
    fn is_to_wait(&mut self, name: &PodRef) -> bool {
        let now = self.node.now();
        let Some(record) = self.pods.get_mut(name) else {
            return false;
        };
        let later = record.enrollment().and_then(|it| it.refresh_at);
        let later = later.filter(|at| *at > now);
        record.next_try = later.unwrap_or(record.next_try);
        later.is_some()
    }

    /// Where a pod's namespace is: as the CNI plugin named it, otherwise by its path or processes.
    fn find(
        &self,
        name: &PodRef,
        netns: &NetnsRef,
        processes: &N::Processes,
    ) -> Result<Found, NodeError> {
        match netns {
            NetnsRef::Path(path) => Ok(Found {
                path: path.clone(),
                inode: None,
                doubt: None,
            }),
            NetnsRef::PodUid(uid) => {
                if let Some(found) = self.sandboxes.found(uid, &self.node) {
                    return Ok(found);
                }
                let record = self.pods.get(name);
                let record = record.ok_or_else(|| NodeError::NotYet(NO_PROCESS.to_owned()))?;
                let known = match record.enrollment() {
                    Some(enrolled) if enrolled.doubt.is_some() => None,
                    Some(enrolled) => Some(enrolled.inode),
                    None => self.earlier_of(name).map(|it| it.inode),
                };
                processes.netns_of_pod(record.sought(uid, known))
            }
        }
    }

    fn facts(
        &self,
        name: &PodRef,
        goal: &Goal,
        found: &Result<Found, NodeError>,
        processes: &N::Processes,
    ) -> Facts {
        let enrollment = self.pods.get(name).and_then(|record| record.enrollment());
        let mut enrolled = enrollment.map(|it| EnrolledFacts {
            inode: it.inode,
            same_reference: it.netns == goal.netns,
            path_leads_there: self.leads_there(it),
            has_processes: false,
            same_policy: it.policy == goal.policy,
            stale: self.is_stale(it),
        });
        // Opening a namespace takes a thread: only where it may be another one.
        let moved = enrolled
            .as_ref()
            .is_some_and(|it| !(it.same_reference && it.path_leads_there));
        let found = found.as_ref().ok().filter(|_| moved);
        let checked = found.map(|found| self.node.check(found));
        let is_unknown = matches!(checked, Some(Err(NodeError::Unknown(_))));
        let is_same = enrolled.as_ref().is_some_and(|it| it.same_reference);
        let is_by_processes = is_same && matches!(goal.netns, NetnsRef::PodUid(_));
        let location = match checked {
            Some(Ok(inode)) => Location::At(inode),
            // The process that was found has ended since.
            Some(Err(NodeError::NotYet(_))) if is_by_processes => Location::NoProcess,
            Some(Err(problem)) => Location::Unusable(problem.to_string()),
            None => Location::NoProcess,
        };
        // Counting processes takes time: only where it matters.
        if let (Some(enrolled), Location::Unusable(_)) = (&mut enrolled, &location) {
            enrolled.has_processes = is_unknown || processes.any_in(enrolled.inode);
        }
        Facts { enrolled, location }
    }

    /// The pod stays enrolled where it is, with a remark.
    fn stay(&mut self, name: &PodRef, text: String) {
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        if record.reason() != Some(&*text) {
            error!(pod = %name, origin = record.origin, "{text}");
        }
        if let State::Enrolled(_, remark) = &mut record.state {
            *remark = Some(text);
        }
    }

    fn follow_path(&mut self, name: &PodRef, netns: &NetnsRef, found: &Result<Found, NodeError>) {
        let enrollment = self.pods.get_mut(name).and_then(|it| it.enrollment_mut());
        if let (Some(enrollment), Ok(found)) = (enrollment, found) {
            enrollment.netns = netns.clone();
            enrollment.path.clone_from(&found.path);
            enrollment.doubt.clone_from(&found.doubt);
            enrollment.link.follow_path(&found.path);
        }
    }

    async fn change_policy(
        &mut self,
        name: &PodRef,
        goal: &Goal,
        processes: &N::Processes,
    ) -> Result<(), EnrollError> {
        let Some(enrollment) = self.pods.get(name).and_then(|it| it.enrollment()) else {
            return Ok(());
        };
        let compiled = goal.policy.on_node(&enrollment.ids)?.compile();
        let acquired = self.acquire(name, compiled);
        let now = self.node.now();
        // What exceeds a quota has cost no row.
        if !matches!(acquired, Err(EnrollError::Excess(_)))
            && let Some(record) = self.pods.get_mut(name)
        {
            let _ = record.changes.take(now);
        }
        let (id, compiled) = acquired?;
        let record = self.pods.get_mut(name);
        let Some(enrollment) = record.and_then(|it| it.enrollment_mut()) else {
            return Ok(());
        };
        let steps = plan::write(Change::Policy, &goal.policy, id, processes);
        match run(&mut self.node, enrollment, steps).await {
            Ok(missed) => {
                enrollment.stale = log_missed(name, missed);
                let earlier = std::mem::replace(&mut enrollment.policy, goal.policy.clone());
                enrollment.policy_id = id;
                let before = std::mem::replace(&mut enrollment.compiled, compiled);
                if let Some(record) = self.pods.get_mut(name) {
                    record.trying_since = None;
                }
                self.release_policy(&before);
                info!(pod = %name, policy = %id, "policy changed");
                let changes = earlier.changes_to(&goal.policy).join("; ");
                let note = format!("another policy is active for its new connections: {changes}");
                self.record_event(name, POLICY_CHANGED, note);
                if earlier.unknown_annotations != goal.policy.unknown_annotations {
                    self.report_unknown(name, &goal.policy);
                }
                Ok(())
            }
            Err(problem) => {
                // Interface rows of the new policy may be there.
                enrollment.stale = true;
                self.release_policy(&compiled);
                Err(problem.into())
            }
        }
    }

    /// Annotations that were perhaps meant to have an effect.
    pub(super) fn report_unknown(&mut self, name: &PodRef, policy: &Policy) {
        let notes = policy.without_effect();
        if !notes.is_empty() {
            self.record_event(name, UNKNOWN_ANNOTATION, notes.join("; "));
        }
    }

    async fn refresh(&mut self, name: &PodRef) -> Result<(), EnrollError> {
        let record = self.pods.get_mut(name);
        match record.and_then(|it| it.enrollment_mut()) {
            Some(enrollment) => Ok(refresh(&mut self.node, enrollment).await?),
            None => Ok(()),
        }
    }

    pub(super) fn release_policy(&mut self, policy: &CompiledPolicy) {
        let now = self.node.now();
        if self.policies.release(policy, now) {
            self.sweep_later();
        }
    }

    /// Notes what became of an attempt.
    fn note_result(&mut self, name: &PodRef, result: Result<(), EnrollError>) {
        let has_earlier = self.earlier_of(name).is_some();
        let now = self.node.now();
        let Some(record) = self.pods.get_mut(name) else {
            return;
        };
        let Err(problem) = result else {
            if matches!(record.desired, Desired::Enroll(_)) {
                record.said = None;
            }
            if let State::Enrolled(_, remark) = &mut record.state {
                match &record.desired {
                    Desired::Enroll(_) => *remark = None,
                    Desired::Keep(reason) => remark.clone_from(reason),
                    Desired::Skip | Desired::Unlisted => {}
                }
            }
            return;
        };
        let reason = problem.to_string();
        let waiting = problem.is_waiting();
        let is_new = match waiting {
            true => record.reason() != Some(&*reason) && record.waits.take(now).is_ok(),
            false => record.is_to_be_said(&reason, now),
        };
        let active = record.enrollment().map(|it| &it.policy);
        // The policy is the wanted one: no Event.
        let is_refresh = active
            .zip(record.goal())
            .is_some_and(|(it, goal)| *it == goal.policy);
        let is_kept = active.is_some() || has_earlier;
        if is_new && waiting {
            info!(pod = %name, "waiting: {reason}");
        } else if is_new && is_refresh {
            error!(pod = %name, origin = record.origin, "{reason}");
        } else if is_new && is_kept {
            error!(pod = %name, origin = record.origin, "{reason}{PREVIOUS_STAYS}");
        } else if is_new {
            error!(pod = %name, origin = record.origin, "cannot enroll: {reason}");
        }
        let state = if waiting {
            PodState::Waiting
        } else {
            PodState::Rejected
        };
        record.settle(state, has_earlier, Some(reason.clone()));
        if !is_new || waiting || is_refresh {
            return;
        }
        if is_kept {
            self.record_event(name, POLICY_REJECTED, format!("{reason}{PREVIOUS_STAYS}"));
        } else {
            self.record_event(name, NOT_ENROLLED, reason);
        }
    }
}

/// Logs a step after the pod's row that has failed, and answers whether one has: its action is done, and the rest follows.
pub(super) fn log_missed(name: &PodRef, missed: Option<NodeError>) -> bool {
    if let Some(problem) = &missed {
        warn!(pod = %name, "{problem}; it is tried again");
    }
    missed.is_some()
}

/// Reads addresses and routes of a pod's namespace again.
pub(super) async fn refresh<N: Node>(
    node: &mut N,
    enrollment: &mut Enrollment<N>,
) -> Result<(), NodeError> {
    let policy = Arc::clone(&enrollment.policy);
    let processes = N::Processes::none();
    let steps = plan::write(Change::Refresh, &policy, enrollment.policy_id, &processes);
    let missed = run(node, enrollment, steps).await?;
    enrollment.stale = missed.is_some();
    missed.map_or(Ok(()), Err)
}

/// When a namespace may be read again. What a pod has there may take long to read: it gets a hundredth of the time, and at
/// most a minute passes.
fn pause_after(began: Instant, ended: Instant) -> Option<Instant> {
    const LONG: Duration = Duration::from_millis(100);
    let took = ended.saturating_duration_since(began);
    (took > LONG).then(|| ended + (took * 100).min(Duration::from_mins(1)))
}

/// Does steps in their order. Answers the first failure that means that they are done again.
pub(super) async fn run<N: Node>(
    node: &mut N,
    enrollment: &mut Enrollment<N>,
    steps: Steps<'_, N::Processes>,
) -> Result<Option<NodeError>, NodeError> {
    let mut missed = None;
    for (step, on_failure) in steps {
        let Enrollment {
            cookie, rows, link, ..
        } = enrollment;
        let began = node.now();
        let done = node.step(*cookie, rows, Some(link), &step).await;
        if matches!(step, Step::ReadNamespace) {
            enrollment.refresh_at = pause_after(began, node.now());
        }
        match done {
            Ok(()) => {}
            Err(problem) if on_failure == OnFailure::Abort => return Err(problem),
            Err(problem) if on_failure == OnFailure::Stop => return Ok(Some(problem)),
            Err(problem) => missed = missed.or(Some(problem)),
        }
    }
    Ok(missed)
}
