//! Processes of enrolled pods that are not where the hooks are. Outside the cgroup of all pods nothing of
//! what they connect to is intercepted. Below it, but not in their pod's own, they need the connection
//! callbacks on the cgroup of all pods. The kernel counts them in one pass over its tasks, off the reconciler's thread.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use sidetrack_common::task::{Group, Place};
use sidetrack_policy::PodRef;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tracing::error;

use super::Reconciler;
use crate::kernel::{
    cgroup,
    hooks::CALLBACKS,
    tasks::{InNetns, Tasks},
};

/// How often to look.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// When to look again before it is reported. A runtime puts a process first into the namespace and then
/// into the cgroup, and people run short commands in a pod's namespace.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(300);
/// A look takes at most this part of a processor: on a node with very many processes it is made less often.
const MAX_SHARE: u32 = 250;

/// What is known of such processes.
#[derive(Debug, Default)]
pub(super) struct Outside {
    next: Option<Instant>,
    look: Option<JoinHandle<Look>>,
    /// What the last look has found.
    last: Seen,
    problems: BTreeMap<PodRef, String>,
    notes: Vec<String>,
    /// Why nothing is known.
    failed: Option<String>,
}

/// The processes in pods' namespaces, by inode.
type Seen = BTreeMap<u64, InNetns>;

/// What one look has found, and the processor time it took.
#[derive(Debug)]
pub struct Look {
    found: std::io::Result<Seen>,
    took: Duration,
}

impl Reconciler {
    /// Waits for the next look. Cancel safe.
    pub async fn look_outside(&mut self) -> Look {
        loop {
            if let Some(look) = &mut self.outside.look {
                let done = look.await;
                self.outside.look = None;
                if let Ok(look) = done {
                    return look;
                }
            }
            let next = self.outside.next.get_or_insert_with(Instant::now);
            sleep_until(*next).await;
            self.outside.next = Some(Instant::now() + LOOK_INTERVAL);
            self.start_look();
        }
    }

    fn start_look(&mut self) {
        let datapath = &self.core.node.datapath;
        let own = |cookie| datapath.own_cgroup(cookie).map(Path::to_owned);
        let enrollments = self.core.enrollments();
        let pods = enrollments.map(|(_, it)| (it.inode.get(), own(it.cookie)));
        let pods: BTreeMap<u64, Option<PathBuf>> = pods.collect();
        let tasks = std::sync::Arc::clone(&datapath.tasks);
        let cgroup = self.core.node.datapath.cgroup().to_owned();
        let look = move || {
            let start = processor_time();
            let found = look(&tasks, &pods, &cgroup);
            let took = processor_time().saturating_sub(start);
            Look { found, took }
        };
        self.outside.look = Some(tokio::task::spawn_blocking(look));
    }

    /// What is wrong with a pod that has processes outside the cgroup.
    #[must_use]
    pub fn partial(&self, pod: &PodRef) -> Option<&str> {
        self.outside.problems.get(pod).map(String::as_str)
    }

    /// What is wrong on account of such processes.
    pub(super) fn outside_problems(&self) -> Vec<String> {
        let of_pods = self.outside.problems.values();
        of_pods.chain(&self.outside.failed).cloned().collect()
    }

    /// What people should know of such processes although nothing is wrong.
    pub(super) fn outside_notes(&self) -> &[String] {
        &self.outside.notes
    }

    /// Reports those that were there twice.
    pub fn note_outside(&mut self, look: Look) {
        let before = (self.outside_problems(), self.outside.notes.clone());
        let now = Instant::now();
        let mut next = now + LOOK_INTERVAL.max(look.took * MAX_SHARE);
        self.outside.failed = match look.found {
            Ok(found) => {
                if self.compare(found) {
                    next = now + CONFIRM_INTERVAL;
                }
                let pods = self.elsewhere();
                let noted = self.core.node.datapath.note_elsewhere(pods);
                noted.err().map(|problem| format!("{problem:#}"))
            }
            Err(problem) => Some(format!("look for processes outside the pods: {problem}")),
        };
        self.outside.next = Some(next);
        let problems = self.outside_problems();
        for problem in problems.iter().filter(|it| !before.0.contains(it)) {
            error!("{problem}");
        }
        if before != (problems, self.outside.notes.clone()) {
            self.core.mark_changed();
        }
    }

    /// Compares with the last look; whether something is to be confirmed by another one.
    fn compare(&mut self, found: Seen) -> bool {
        let last = std::mem::take(&mut self.outside.last);
        let cgroup = self.core.node.datapath.cgroup().to_owned();
        let mut problems = BTreeMap::new();
        let mut notes = Vec::new();
        let mut is_new = false;
        for (name, enrollment) in self.core.enrollments() {
            let inode = enrollment.inode.get();
            let mut twice = |place| {
                let group = |seen: &Seen| seen.get(&inode).map(|it| it.at(place));
                let now = group(&found).filter(|now| now.count > 0)?;
                let same = |before: Group| (before.pid, before.started) == (now.pid, now.started);
                let was_there = group(&last).is_some_and(same);
                is_new |= !was_there;
                was_there.then_some(now)
            };
            if let Some(group) = twice(Place::Outside) {
                problems.insert(name.clone(), problem(name, group, &cgroup));
            }
            notes.extend(twice(Place::Elsewhere).map(|group| note(name, group)));
        }
        self.outside.last = found;
        self.outside.problems = problems;
        self.outside.notes = notes;
        is_new
    }

    /// Pods with processes in other cgroups than their own. What they need does no harm if they are gone by then.
    fn elsewhere(&self) -> std::collections::BTreeSet<sidetrack_common::ids::NetnsCookie> {
        let seen = &self.outside.last;
        let any = |inode| {
            seen.get(&inode)
                .is_some_and(|it| it.at(Place::Elsewhere).count > 0)
        };
        let enrollments = self.core.enrollments();
        let with = enrollments.filter(|(_, it)| any(it.inode.get()));
        with.map(|(_, it)| it.cookie).collect()
    }
}

/// The oldest process, and how many more there are.
fn first_of(group: Group) -> String {
    match group.count - 1 {
        0 => group.pid.to_string(),
        more => format!("{} (and {more} more)", group.pid),
    }
}

fn note(pod: &PodRef, group: Group) -> String {
    format!(
        "pod {pod}: process {} is in another cgroup than the pod's own. It is intercepted; for its sake hook {CALLBACKS} runs for all pods, which costs each of their connections under a microsecond",
        first_of(group)
    )
}

fn problem(pod: &PodRef, group: Group, cgroup: &Path) -> String {
    format!(
        "pod {pod}: process {} is not below {}, where the hooks are: what it connects to is not intercepted. If that cgroup does not hold all pods, pass the one that does to --cgroup",
        first_of(group),
        cgroup.display()
    )
}

/// Counts the processes in the namespaces of these pods, each with its own cgroup.
fn look(
    tasks: &Tasks,
    pods: &BTreeMap<u64, Option<PathBuf>>,
    cgroup: &Path,
) -> std::io::Result<Seen> {
    /// The id of no cgroup: nothing is in one that is gone.
    const GONE: u64 = u64::MAX;
    let id = |path: &PathBuf| cgroup::id(path).unwrap_or(GONE);
    let pods = pods
        .iter()
        .map(|(inode, path)| (*inode, path.as_ref().map(id)));
    tasks.count(&pods.collect(), cgroup::id(cgroup).unwrap_or(GONE))
}

/// What this thread has used so far.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests;
