//! Pods that leave. A pod whose processes still run stays intercepted, whatever the API says.

use sidetrack_common::ids::NetnsCookie;
use sidetrack_policy::{PodRef, manifest::NetnsRef};
use tracing::{error, info, warn};

use super::{
    Core,
    held::{Held, Removal},
};
use crate::{
    node::{Enrollment, Node, NodeError, Processes as _},
    plan::{self, Step},
    state::{Desired, PodState, Record, SLOW_RETRY, State},
};

/// Why a pod that is not listed is enrolled.
const STILL_RUNS: &str = "it or its namespace is deleted, or it is completed, and it still runs; it is released when its last process has ended";

impl<N: Node> Core<N> {
    /// Releases a pod. Its established connections continue.
    pub(super) async fn release(&mut self, name: &PodRef, reason: &str) {
        let record = self.pods.get_mut(name);
        if let Some(enrollment) = record.and_then(|it| it.take_enrollment()) {
            self.release_enrollment(name, *enrollment, reason).await;
        }
    }

    async fn release_enrollment(&mut self, name: &PodRef, enrollment: Enrollment<N>, reason: &str) {
        let now = self.node.now();
        let removal = Removal::new(enrollment.rows, Some(enrollment.compiled), now);
        let clean = self
            .remove_rows(enrollment.cookie, removal, Some(enrollment.link))
            .await;
        if clean {
            info!(pod = %name, "released: {reason}");
        } else {
            warn!(pod = %name, "released, and rows of it remain: {reason}; they are removed later");
        }
    }

    /// Removes a pod's rows. What cannot be removed is tried again later.
    pub(super) async fn remove_rows(
        &mut self,
        cookie: NetnsCookie,
        mut removal: Removal<N>,
        mut link: Option<N::Link>,
    ) -> bool {
        let Err(problem) = self.try_remove(cookie, &mut removal, link.as_mut()).await else {
            return true;
        };
        removal.next_try = self.node.now() + SLOW_RETRY;
        if self.held.insert(cookie, Held::Removal(removal)) {
            error!(%cookie, "remove a pod's rows: {problem}");
        }
        false
    }

    /// Tries again to remove rows that could not be removed.
    pub(super) async fn retry_removals(&mut self) {
        let now = self.node.now();
        let due = self.held.removals().filter(|(_, it)| it.next_try <= now);
        let due: Vec<NetnsCookie> = due.map(|(cookie, _)| cookie).collect();
        for cookie in due {
            let Some(Held::Removal(mut removal)) = self.held.take(cookie) else {
                continue;
            };
            match self.try_remove(cookie, &mut removal, None).await {
                Ok(()) => info!(%cookie, "removed the rest of a pod's rows"),
                Err(_) => {
                    removal.next_try = now + SLOW_RETRY;
                    self.held.insert(cookie, Held::Removal(removal));
                }
            }
        }
    }

    /// Does all steps of leaving; answers the first problem. The policy is released once no row names
    /// it.
    async fn try_remove(
        &mut self,
        cookie: NetnsCookie,
        removal: &mut Removal<N>,
        mut link: Option<&mut N::Link>,
    ) -> Result<(), NodeError> {
        let mut result = Ok(());
        for step in plan::remove() {
            let rows = &mut removal.rows;
            let done = self
                .node
                .step(cookie, rows, link.as_deref_mut(), &step)
                .await;
            if matches!(step, Step::RemovePod) && done.is_ok() && !removal.is_unnamed {
                removal.is_unnamed = true;
                match removal.policy.take() {
                    Some(policy) => self.release_policy(&policy),
                    None => self.sweep_later(),
                }
            }
            result = result.and(done);
        }
        result
    }

    /// Something else takes the pod's place, `why`. Processes that still run stay intercepted.
    pub(super) async fn depart(&mut self, name: &PodRef, why: &str) {
        let enrollment = self.pods.get(name).and_then(Record::enrollment);
        // A manifest that names a path is complete: processes do not count.
        let by_uid = enrollment.filter(|it| matches!(it.netns, NetnsRef::PodUid(_)));
        let inode = by_uid.map(|it| it.inode);
        if !inode.is_some_and(|inode| self.processes().any_in(inode)) {
            self.release(name, why).await;
            return;
        }
        let record = self.pods.get_mut(name);
        if let Some(enrollment) = record.and_then(|it| it.take_enrollment()) {
            let cookie = enrollment.cookie;
            warn!(pod = %name, "{why}, and a process still runs there; it is released when its last process has ended");
            let departing = Held::Departing(name.clone(), enrollment);
            self.held.insert(cookie, departing);
        }
    }

    /// Releases pods that [`Core::depart`] kept, once nothing runs there.
    async fn release_departed(&mut self, processes: &mut Option<N::Processes>) {
        if self.held.departing().next().is_none() {
            return;
        }
        let processes = processes.get_or_insert_with(|| self.processes());
        let gone = self.held.departing();
        let gone = gone.filter(|(_, enrollment)| !processes.any_in(enrollment.inode));
        let gone: Vec<NetnsCookie> = gone.map(|(_, enrollment)| enrollment.cookie).collect();
        for cookie in gone {
            if let Some(Held::Departing(name, enrollment)) = self.held.take(cookie) {
                self.release_enrollment(&name, *enrollment, "its last process has ended")
                    .await;
            }
        }
    }

    /// Removes pods of an earlier agent that are not listed, once there was a complete listing.
    /// Those that are listed and could not be enrolled again keep what that agent wrote.
    pub(super) async fn drop_unlisted(&mut self, processes: &mut Option<N::Processes>) {
        let Some(running_counts) = self.running_counts else {
            return;
        };
        let mut gone = Vec::new();
        for earlier in self.held.earlier() {
            let record = self.record_of(earlier);
            let is_skipped = record.is_some_and(|it| it.state() == PodState::Skipped);
            // An enrolled pod is elsewhere than where an earlier agent had it.
            let is_awaited = record.is_some_and(|it| {
                !is_skipped && it.desired != Desired::Unlisted && it.enrollment().is_none()
            });
            let mut runs = || {
                let processes = processes.get_or_insert_with(|| self.processes());
                processes.any_in(earlier.inode)
            };
            let may_stay = running_counts && earlier.pod.is_some() && !is_skipped;
            if !(is_awaited || may_stay && runs()) {
                gone.push(earlier.cookie);
            }
        }
        for cookie in gone {
            let processes = processes.get_or_insert_with(|| self.processes());
            self.forget_earlier(cookie, Some(processes)).await;
        }
    }

    /// A pod is not listed any more. [`Core::release_ended`] checks whether it still runs.
    pub(super) fn mark_unlisted(&mut self, name: &PodRef) {
        if let Some(record) = self.pods.get_mut(name) {
            record.desired = Desired::Unlisted;
        }
    }

    /// Releases pods that are not listed any more, unless they still run.
    pub(super) async fn release_ended(&mut self) {
        // All use the same view of processes, which is read only if something needs it.
        let mut processes = None;
        self.drop_unlisted(&mut processes).await;
        self.release_departed(&mut processes).await;
        let unlisted = |(_, record): &(&PodRef, &Record<N>)| record.desired == Desired::Unlisted;
        let unlisted: Vec<PodRef> = self
            .pods
            .iter()
            .filter(unlisted)
            .map(|(name, _)| name.clone())
            .collect();
        if unlisted.is_empty() {
            return;
        }
        let processes = processes.get_or_insert_with(|| self.processes());
        // A runtime may be about to start something there.
        let sandboxes = self.sandboxes.inodes(&self.node);
        for name in unlisted {
            let record = self.pods.get_mut(&name);
            let runs = record.filter(|record| {
                let inode = record.enrollment().map(|it| it.inode);
                inode.is_some_and(|inode| processes.any_in(inode) || sandboxes.contains(&inode))
            });
            match runs {
                Some(record) => {
                    if record.reason() != Some(STILL_RUNS) {
                        warn!(pod = %name, "{STILL_RUNS}");
                    }
                    if let State::Enrolled(_, remark) = &mut record.state {
                        *remark = Some(STILL_RUNS.to_owned());
                    }
                }
                None => {
                    self.release(&name, "it is gone").await;
                    self.pods.remove(&name);
                }
            }
        }
        let pods = &self.pods;
        self.sandboxes
            .retain(|sandbox| pods.contains_key(&sandbox.pod));
        self.changed = true;
    }
}
