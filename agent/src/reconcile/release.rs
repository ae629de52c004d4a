//! Pods that go. What still runs stays intercepted, whatever the API says.

use tracing::{error, info, warn};

use super::{Enrollment, Entry, Processes, Reconciler, look_at_processes};
use crate::api::PodState;
use sidetrack_policy::{PodRef, manifest::NetnsRef};

/// Why a pod is enrolled that nobody lists.
const STILL_RUNS: &str =
    "it is deleted and still runs; it is released when its last process has ended";

impl Reconciler {
    /// Takes a pod out of interception. Its established connections go on.
    pub(super) async fn leave(&mut self, name: &PodRef, reason: &str) {
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        let Some(enrollment) = entry.enrollment.take() else {
            return;
        };
        self.let_go(name, enrollment, reason).await;
    }

    async fn let_go(&mut self, name: &PodRef, enrollment: Enrollment, reason: &str) {
        self.by_cookie.remove(&enrollment.cookie());
        let result = enrollment.leave(&self.datapath, &mut self.policies).await;
        match result {
            Ok(()) => info!(pod = %name, "left: {reason}"),
            Err(error) => error!(pod = %name, "left, but not cleanly: {error:#}"),
        }
    }

    /// Something else takes its place, `why`. What still runs of it stays intercepted.
    pub(super) async fn let_depart(&mut self, name: &PodRef, why: &str) {
        let enrollment = self.pods.get(name).and_then(Entry::enrollment);
        // A manifest that names a path says all there is to say.
        let by_uid = enrollment.filter(|it| matches!(it.place(), NetnsRef::PodUid(_)));
        let inode = by_uid.map(Enrollment::inode);
        if !inode.is_some_and(|inode| look_at_processes().any_in(inode)) {
            self.leave(name, why).await;
            return;
        }
        let Some(entry) = self.pods.get_mut(name) else {
            return;
        };
        if let Some(enrollment) = entry.enrollment.take() {
            warn!(pod = %name, "{why}, and something still runs there; it is released when its last process has ended");
            self.departing.push((name.clone(), enrollment));
        }
    }

    /// Releases pods that [`Reconciler::let_depart`] let go on.
    async fn release_departed(&mut self, processes: &mut Option<Processes>) {
        if self.departing.is_empty() {
            return;
        }
        let processes = processes.get_or_insert_with(look_at_processes);
        let (gone, running) = std::mem::take(&mut self.departing)
            .into_iter()
            .partition(|(_, enrollment)| !processes.any_in(enrollment.inode()));
        self.departing = running;
        let gone: Vec<(PodRef, Enrollment)> = gone;
        for (name, enrollment) in gone {
            self.let_go(&name, enrollment, "its last process has ended")
                .await;
        }
    }

    /// Removes pods of an earlier agent that nobody lists any more, once there was a complete list.
    /// Those that are listed and could not be enrolled again are still judged by what that agent
    /// wrote.
    pub(super) fn drop_unlisted(&mut self, processes: &mut Option<Processes>) {
        let pods = &self.pods;
        let Some(running_counts) = self.running_counts else {
            return;
        };
        let listed = |name: &PodRef| {
            pods.get(name)
                .is_some_and(|entry| entry.state != PodState::NotTaken)
        };
        // Enrolled means: elsewhere than an earlier agent had it.
        let waited_for = |name: &PodRef| {
            let entry = pods.get(name);
            listed(name) && entry.is_some_and(|entry| entry.enrollment.is_none())
        };
        if self.inherited.all(waited_for) {
            return;
        }
        let processes = running_counts.then(|| processes.get_or_insert_with(look_at_processes));
        let runs = |inode| processes.as_ref().is_some_and(|all| all.any_in(inode));
        let kept = |name: &PodRef, inode: u64| {
            let opted_out = pods.contains_key(name) && !listed(name);
            waited_for(name) || !opted_out && runs(inode)
        };
        self.inherited.retain(kept, &self.datapath);
    }

    /// Nobody lists a pod any more; [`Reconciler::release_ended`] looks whether it still runs.
    pub(super) fn mark_unlisted(&mut self, name: &PodRef) {
        if let Some(entry) = self.pods.get_mut(name) {
            entry.unlisted = true;
            entry.goal = None;
        }
    }

    /// Releases pods that nobody lists any more, unless they still run.
    pub(super) async fn release_ended(&mut self) {
        // All look at the same processes, and only if there is anything to look for.
        let mut processes = None;
        self.drop_unlisted(&mut processes);
        self.release_departed(&mut processes).await;
        let unlisted = self.pods.iter().filter(|(_, entry)| entry.unlisted);
        let unlisted: Vec<PodRef> = unlisted.map(|(name, _)| name.clone()).collect();
        if unlisted.is_empty() {
            return;
        }
        let processes = processes.get_or_insert_with(look_at_processes);
        // A runtime may be about to start something there.
        let sandboxes = self.sandbox_inodes();
        let runs = |entry: &Entry| {
            let inode = entry.enrollment.as_ref().map(Enrollment::inode);
            inode.is_some_and(|inode| processes.any_in(inode) || sandboxes.contains(&inode))
        };
        for name in unlisted {
            match self.pods.get_mut(&name) {
                Some(entry) if runs(entry) => {
                    if entry.reason.as_deref() != Some(STILL_RUNS) {
                        warn!(pod = %name, "{STILL_RUNS}");
                    }
                    entry.settle(PodState::Enrolled, Some(STILL_RUNS.to_owned()));
                }
                _ => {
                    self.leave(&name, "it is gone").await;
                    self.pods.remove(&name);
                }
            }
        }
        let pods = &self.pods;
        self.sandboxes.retain(|_, told| told.is_of(pods));
        self.dirty = true;
    }
}
