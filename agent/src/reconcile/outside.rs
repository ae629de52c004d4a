//! Processes of enrolled pods that are not below the cgroup with the hooks: nothing of what they connect to
//! is intercepted. They are found by comparing the processes in the pods' namespaces with those below the
//! cgroup, off the reconciler's thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use sidetrack_policy::PodRef;
use tokio::task::JoinHandle;

use super::Reconciler;
use crate::{
    kernel::repair::Findings,
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
    look: Option<JoinHandle<BTreeMap<u64, BTreeSet<i32>>>>,
    /// Those of the last look, by the inode of their namespace.
    last: BTreeMap<u64, BTreeSet<i32>>,
    problems: BTreeMap<PodRef, String>,
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
            self.note_outside(found);
        }
        let now = Instant::now();
        if self.outside.look.is_none() && self.outside.next.is_none_or(|next| next <= now) {
            self.outside.next = Some(now + EVERY);
            let cgroup = self.cgroup().to_owned();
            let enrollments = self.core.enrollments();
            let inodes = enrollments.map(|(_, it)| it.inode.get()).collect();
            self.outside.look = Some(tokio::task::spawn_blocking(move || look(&inodes, &cgroup)));
        }
        findings
            .problems
            .extend(self.outside.problems.values().cloned());
    }

    /// What is wrong with a pod that has processes outside the cgroup.
    #[must_use]
    pub fn partial(&self, pod: &PodRef) -> Option<&str> {
        self.outside.problems.get(pod).map(String::as_str)
    }

    fn note_outside(&mut self, found: BTreeMap<u64, BTreeSet<i32>>) {
        let last = std::mem::take(&mut self.outside.last);
        let cgroup = self.cgroup().to_owned();
        let mut problems = BTreeMap::new();
        for (name, enrollment) in self.core.enrollments() {
            let inode = enrollment.inode.get();
            let (Some(now), Some(before)) = (found.get(&inode), last.get(&inode)) else {
                continue;
            };
            let both: Vec<i32> = now.intersection(before).copied().collect();
            let problem = problem(name, &both, &cgroup);
            problems.extend(problem.map(|problem| (name.clone(), problem)));
        }
        if !found.is_empty() {
            self.outside.next = Some(Instant::now() + CONFIRM);
        }
        self.outside.last = found;
        self.outside.problems = problems;
    }
}

fn problem(pod: &PodRef, pids: &[i32], cgroup: &Path) -> Option<String> {
    let first = pids.first()?;
    let others = match pids.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!(
        "pod {pod}: process {first}{others} is not below {}, where the hooks are: what it connects to is not intercepted. If that cgroup does not hold all pods, pass the one that does to --cgroup",
        cgroup.display()
    ))
}

/// Processes in these namespaces that are not below a cgroup.
fn look(inodes: &BTreeSet<u64>, cgroup: &Path) -> BTreeMap<u64, BTreeSet<i32>> {
    // Before the cgroup: a process that starts in between is seen below it only.
    let in_pods = in_namespaces(inodes);
    let below = in_cgroup(cgroup);
    let mut outside: BTreeMap<u64, BTreeSet<i32>> = BTreeMap::new();
    for (pid, inode) in in_pods {
        if !below.contains(&pid) {
            outside.entry(inode).or_default().insert(pid);
        }
    }
    outside
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
