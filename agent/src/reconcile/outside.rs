//! Processes of enrolled pods that are not where the hooks are. Outside the cgroup of all pods nothing of
//! what they connect to is intercepted. Below it, but not in their pod's own, they need the connection
//! callbacks on the cgroup of all pods. They are found by comparing the processes in the pods' namespaces with
//! those below the cgroups, off the reconciler's thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Result;
use sidetrack_policy::PodRef;
use tokio::task::JoinHandle;

use super::Reconciler;
use crate::{
    kernel::{hooks::CALLBACKS, repair::Findings},
    netns::processes::{in_cgroup, in_namespaces},
};

/// How often to look.
const EVERY: Duration = Duration::from_secs(10);
/// When to look again before it is reported. A runtime puts a process first into the namespace and then
/// into the cgroup, and people run short commands in a pod's namespace.
const CONFIRM: Duration = Duration::from_secs(3);

/// What is known of such processes.
#[derive(Debug, Default)]
pub(super) struct Outside {
    next: Option<Instant>,
    look: Option<JoinHandle<Seen>>,
    /// Those of the last look.
    last: Seen,
    problems: BTreeMap<PodRef, String>,
    notes: Vec<String>,
}

/// Processes by the inode of their namespace.
type ByNetns = BTreeMap<u64, BTreeSet<i32>>;

/// What one look found.
#[derive(Debug, Default)]
struct Seen {
    /// Not below the cgroup of all pods.
    outside: ByNetns,
    /// Below it, and not in the cgroup of their own pod.
    elsewhere: ByNetns,
}

impl Reconciler {
    /// Looks for such processes when it is time to, and reports those that were there twice.
    pub(super) async fn find_outside(&mut self, findings: &mut Findings) {
        if self
            .outside
            .look
            .as_ref()
            .is_some_and(JoinHandle::is_finished)
            && let Some(look) = self.outside.look.take()
            && let Ok(found) = look.await
        {
            findings.tried(self.note_outside(found).map(|()| None));
        }
        let now = Instant::now();
        if self.outside.look.is_none() && self.outside.next.is_none_or(|next| next <= now) {
            self.outside.next = Some(now + EVERY);
            let cgroup = self.cgroup().to_owned();
            let enrollments = self.core.enrollments();
            let datapath = &self.core.node.datapath;
            let own = |cookie| datapath.own_cgroup(cookie).map(Path::to_owned);
            let pods = enrollments.map(|(_, it)| (it.inode.get(), own(it.cookie)));
            let pods = pods.collect();
            self.outside.look = Some(tokio::task::spawn_blocking(move || look(&pods, &cgroup)));
        }
        findings
            .problems
            .extend(self.outside.problems.values().cloned());
        findings.notes.extend(self.outside.notes.iter().cloned());
    }

    /// What is wrong with a pod that has processes outside the cgroup.
    #[must_use]
    pub fn partial(&self, pod: &PodRef) -> Option<&str> {
        self.outside.problems.get(pod).map(String::as_str)
    }

    fn note_outside(&mut self, found: Seen) -> Result<()> {
        let last = std::mem::take(&mut self.outside.last);
        let cgroup = self.cgroup().to_owned();
        let mut problems = BTreeMap::new();
        let mut notes = Vec::new();
        let mut elsewhere = BTreeSet::new();
        for (name, enrollment) in self.core.enrollments() {
            let inode = enrollment.inode.get();
            let outside = in_both(&found.outside, &last.outside, inode);
            let problem = problem(name, &outside, &cgroup);
            problems.extend(problem.map(|problem| (name.clone(), problem)));
            // What they need does no harm if they are gone by then.
            if found.elsewhere.contains_key(&inode) {
                elsewhere.insert(enrollment.cookie);
            }
            notes.extend(note(
                name,
                &in_both(&found.elsewhere, &last.elsewhere, inode),
            ));
        }
        if !found.outside.is_empty() {
            self.outside.next = Some(Instant::now() + CONFIRM);
        }
        self.outside.last = found;
        self.outside.problems = problems;
        self.outside.notes = notes;
        self.core.node.datapath.note_elsewhere(elsewhere)
    }
}

/// Processes of a namespace that were seen twice.
fn in_both(now: &ByNetns, before: &ByNetns, inode: u64) -> Vec<i32> {
    let (Some(now), Some(before)) = (now.get(&inode), before.get(&inode)) else {
        return Vec::new();
    };
    now.intersection(before).copied().collect()
}

/// A process, and how many more there are.
fn first_of(pids: &[i32]) -> Option<String> {
    let first = pids.first()?;
    Some(match pids.len() - 1 {
        0 => first.to_string(),
        more => format!("{first} (and {more} more)"),
    })
}

fn note(pod: &PodRef, pids: &[i32]) -> Option<String> {
    let processes = first_of(pids)?;
    Some(format!(
        "pod {pod}: process {processes} is in another cgroup than the pod's own. It is intercepted; for its sake hook {CALLBACKS} runs for all pods, which costs each of their connections under a microsecond"
    ))
}

fn problem(pod: &PodRef, pids: &[i32], cgroup: &Path) -> Option<String> {
    let processes = first_of(pids)?;
    Some(format!(
        "pod {pod}: process {processes} is not below {}, where the hooks are: what it connects to is not intercepted. If that cgroup does not hold all pods, pass the one that does to --cgroup",
        cgroup.display()
    ))
}

/// Processes in the namespaces of these pods, each with its own cgroup, that are not where they belong.
fn look(pods: &BTreeMap<u64, Option<PathBuf>>, cgroup: &Path) -> Seen {
    // Before the cgroups: a process that starts in between is seen below those only.
    let in_pods = in_namespaces(&pods.keys().copied().collect());
    let below = in_cgroup(cgroup);
    let mut own = BTreeMap::new();
    for (inode, path) in pods {
        own.extend(path.as_ref().map(|path| (*inode, in_cgroup(path))));
    }
    let mut seen = Seen::default();
    for (pid, inode) in in_pods {
        let kind = if !below.contains(&pid) {
            &mut seen.outside
        } else if own.get(&inode).is_some_and(|own| !own.contains(&pid)) {
            &mut seen.elsewhere
        } else {
            continue;
        };
        kind.entry(inode).or_default().insert(pid);
    }
    seen
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sidetrack_policy::PodRef;

    use super::problem;

    #[test]
    fn the_problem_names_pod_process_and_cgroup() {
        let pod = PodRef {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        };
        let cgroup = Path::new("/sys/fs/cgroup/kubepods");
        assert_eq!(problem(&pod, &[], cgroup), None);
        let one = problem(&pod, &[7], cgroup).unwrap();
        assert!(one.starts_with("pod shop/web: process 7 is not below /sys/fs/cgroup/kubepods,"));
        let more = problem(&pod, &[7, 8, 9], cgroup).unwrap();
        assert!(more.contains("process 7 (and 2 more) is not"), "{more}");
    }
}
