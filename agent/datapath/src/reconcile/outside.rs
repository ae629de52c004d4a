//! Processes of enrolled pods that are not where the hooks are. Outside the cgroup of all pods nothing of
//! what they connect to is intercepted. Below it, but not in their pod's own, they need the connection
//! callbacks on the cgroup of all pods. The kernel counts them in one pass over its tasks, off the reconciler's thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use sidetrack_base::runtime;
use sidetrack_common::{
    ids::NetnsCookie,
    task::{Group, Place},
};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::Core;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tracing::error;

use crate::{
    kernel::{
        cgroup,
        hooks::CALLBACKS,
        tasks::{InNetns, Tasks},
    },
    node::KernelNode,
};

/// How often to look.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// When to look again before it is reported. A runtime puts a process first into the namespace and then
/// into the cgroup, and people run short commands in a pod's namespace.
const CONFIRM_INTERVAL: Duration = Duration::from_millis(300);
/// A look uses at most one part in this many of a processor: on a node with very many processes it is made less often.
const PROCESSOR_PARTS: u32 = 250;

/// What is known of such processes.
#[derive(Debug, Default)]
pub(super) struct Outside {
    next: Option<Instant>,
    look: Option<oneshot::Receiver<OutsideProcesses>>,
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
pub struct OutsideProcesses {
    found: std::io::Result<Seen>,
    took: Duration,
}

impl Outside {
    /// Waits for the next look. Cancel safe.
    pub(super) async fn look(&mut self, core: &Core<KernelNode>) -> OutsideProcesses {
        loop {
            if let Some(look) = &mut self.look {
                let done = look.await;
                self.look = None;
                if let Ok(look) = done {
                    return look;
                }
            }
            let next = self.next.get_or_insert_with(Instant::now);
            sleep_until(*next).await;
            self.next = Some(Instant::now() + LOOK_INTERVAL);
            self.start_look(core);
        }
    }

    fn start_look(&mut self, core: &Core<KernelNode>) {
        let datapath = &core.node.datapath;
        let own = |cookie| datapath.own_cgroup(cookie).map(Path::to_owned);
        let enrollments = core.enrollments();
        let pods = enrollments.map(|(_, it)| (it.inode.get(), own(it.cookie)));
        let pods: BTreeMap<u64, Option<PathBuf>> = pods.collect();
        let tasks = std::sync::Arc::clone(&datapath.tasks);
        let cgroup = core.node.datapath.cgroup().to_owned();
        let look = move || {
            let start = processor_time();
            let found = look(&tasks, &pods, &cgroup);
            let took = processor_time().saturating_sub(start);
            OutsideProcesses { found, took }
        };
        self.look = Some(runtime::start_blocking(look));
    }

    /// What is wrong with a pod that has processes outside the cgroup.
    pub(super) fn partial(&self, pod: &PodRef) -> Option<&str> {
        self.problems.get(pod).map(String::as_str)
    }

    /// What is wrong on account of such processes.
    pub(super) fn problems(&self) -> Vec<String> {
        let of_pods = self.problems.values();
        of_pods.chain(&self.failed).cloned().collect()
    }

    /// What people should know of such processes although nothing is wrong.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reports those that were there twice.
    pub(super) fn note(&mut self, core: &mut Core<KernelNode>, look: OutsideProcesses) {
        let before = (self.problems(), self.notes.clone());
        let now = Instant::now();
        let mut next = now + LOOK_INTERVAL.max(look.took * PROCESSOR_PARTS);
        self.failed = match look.found {
            Ok(found) => {
                if self.compare(core, found) {
                    next = now + CONFIRM_INTERVAL;
                }
                let pods = self.elsewhere(core);
                let noted = core.node.datapath.note_elsewhere(pods);
                noted.err().map(|problem| format!("{problem:#}"))
            }
            Err(problem) => Some(format!("look for processes outside the pods: {problem}")),
        };
        self.next = Some(next);
        let problems = self.problems();
        for problem in problems.iter().filter(|it| !before.0.contains(it)) {
            error!("{problem}");
        }
        if before != (problems, self.notes.clone()) {
            core.mark_changed();
        }
    }

    /// Compares with the last look; whether something is to be confirmed by another one.
    fn compare(&mut self, core: &Core<KernelNode>, found: Seen) -> bool {
        let last = std::mem::take(&mut self.last);
        let cgroup = core.node.datapath.cgroup().to_owned();
        let mut problems = BTreeMap::new();
        let mut notes = Vec::new();
        let mut is_new = false;
        for (name, enrollment) in core.enrollments() {
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
        self.last = found;
        self.problems = problems;
        self.notes = notes;
        is_new
    }

    /// Pods with processes in other cgroups than their own. What they need does no harm if they are gone by then.
    fn elsewhere(&self, core: &Core<KernelNode>) -> BTreeSet<NetnsCookie> {
        let seen = &self.last;
        let any = |inode| {
            seen.get(&inode)
                .is_some_and(|it| it.at(Place::Elsewhere).count > 0)
        };
        let enrollments = core.enrollments();
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
