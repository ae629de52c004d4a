//! Looks every two seconds whether everything in the kernel is as it was put there, repairs it or
//! says what is wrong; and leaves older layouts when nobody needs them any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use tracing::{error, info, warn};

use super::{Reconciler, look_at_processes};
use crate::{
    api::PodState,
    kernel::{
        attachments::{Findings, Kind},
        layouts::OldLayout,
    },
    netns::processes::Processes,
};
use sidetrack_policy::{PodRef, manifest::NetnsRef};

/// How often.
pub(super) const EVERY: Duration = Duration::from_secs(2);

/// What has been found so far.
#[derive(Debug, Default)]
pub struct Health {
    /// What is wrong and stays so until somebody else mends it.
    pub problems: Vec<String>,
    counts: BTreeMap<Kind, u64>,
    next: Option<Instant>,
    /// When to look at older layouts again: that may look at all processes.
    next_leave: Option<Instant>,
    /// About older layouts.
    waiting: Vec<String>,
    buffer: Vec<u8>,
}

impl Health {
    /// Repairs so far, by the name of their kind.
    #[must_use]
    pub fn repairs(&self) -> BTreeMap<&'static str, u64> {
        let count = |kind: Kind| self.counts.get(&kind).copied().unwrap_or_default();
        Kind::ALL
            .into_iter()
            .map(|kind| (kind.name(), count(kind)))
            .collect()
    }
}

impl Reconciler {
    /// What has been found so far.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// The cgroup the hooks are attached to.
    pub fn cgroup(&self) -> &Path {
        self.datapath.cgroup()
    }

    /// Looks at everything when it is time to; whether the cgroup is another now. To be called twice
    /// a second.
    pub fn heal(&mut self) -> bool {
        self.leave_earlier();
        let now = Instant::now();
        if self.health.next.is_some_and(|next| now < next) {
            return false;
        }
        self.health.next = Some(now + EVERY);
        let mut findings = Findings::default();
        // Rows first: what is attached again finds them complete.
        self.heal_rows(&mut findings);
        self.datapath.heal(&mut findings);
        self.heal_pods(&mut findings);
        self.heal_inherited(&mut findings);
        self.sweep_handshakes(&mut findings);
        self.note(findings)
    }

    fn heal_rows(&mut self, findings: &mut Findings) {
        let maps = &self.datapath.maps;
        let mut buffer = std::mem::take(&mut self.health.buffer);
        match self.policies.mend(maps, &mut buffer) {
            Ok(0) => {}
            Ok(rows) => {
                let text = format!("{rows} rows of policies were missing: wrote them again");
                findings.repaired(Kind::Row, text);
            }
            Err(error) => findings
                .problems
                .push(format!("look at policies: {error:#}")),
        }
        for (name, enrollment) in self.enrollments() {
            match enrollment.mend(maps, &mut buffer) {
                Ok(0) => {}
                Ok(rows) => {
                    let text = format!(
                        "{rows} rows of pod {name} were missing or different: wrote them again"
                    );
                    findings.repaired(Kind::Row, text);
                }
                Err(error) => {
                    let text = format!("look at the rows of pod {name}: {error:#}");
                    findings.problems.push(text);
                }
            }
        }
        self.health.buffer = buffer;
        match maps.pods.keys() {
            Ok(cookies) => {
                for cookie in cookies {
                    if self.by_cookie.contains_key(&cookie) || self.inherited.has(cookie) {
                        continue;
                    }
                    match maps.pods.remove(&cookie) {
                        Ok(_) => findings.repaired(
                            Kind::Row,
                            format!("a pod was there that nobody enrolled, cookie {cookie}: removed its row"),
                        ),
                        Err(error) => findings
                            .problems
                            .push(format!("remove the row of a pod that nobody enrolled: {error}")),
                    }
                }
            }
            Err(error) => findings.problems.push(format!("list pods: {error}")),
        }
    }

    fn heal_pods(&self, findings: &mut Findings) {
        for (name, enrollment) in self.enrollments() {
            let healed = self.datapath.heal_pod(
                enrollment.cookie(),
                enrollment.netns_path(),
                enrollment.inode(),
            );
            let named = |(kind, text)| (kind, format!("pod {name}: {text}"));
            findings.tried(healed.map(|repair| repair.map(named)));
        }
    }

    /// Pods that an earlier agent enrolled and this one could not, such as one whose manifest cannot be
    /// followed: their links, and whether they are still there.
    fn heal_inherited(&mut self, findings: &mut Findings) {
        let datapath = &self.datapath;
        let detached = self.inherited.places();
        let detached: Vec<(u64, u64)> = detached
            .filter(|(cookie, inode)| !datapath.is_attached(*cookie, *inode))
            .collect();
        if detached.is_empty() {
            return;
        }
        let processes = look_at_processes();
        for (cookie, inode) in detached {
            let name = self.inherited.name(cookie).cloned();
            if let Some(path) = processes.path_of(inode) {
                let healed = self.datapath.heal_pod(cookie, &path, inode);
                let named = |name: &PodRef| format!("pod {name}: ");
                let named = name.as_ref().map(named).unwrap_or_default();
                findings.tried(healed.map(|it| it.map(|(kind, text)| (kind, named + &text))));
            } else if !processes.any_in(inode) {
                self.inherited.drop_one(cookie, &self.datapath);
                let entry = name.and_then(|name| self.pods.get_mut(&name));
                if let Some(entry) = entry.filter(|entry| entry.enrollment.is_none()) {
                    entry.state = PodState::Rejected;
                    self.dirty = true;
                }
            }
        }
    }

    /// Tells and counts what was found; whether the cgroup is another now.
    fn note(&mut self, findings: Findings) -> bool {
        for (kind, text) in &findings.repairs {
            warn!("{text}");
            *self.health.counts.entry(*kind).or_default() += 1;
        }
        let problems = [findings.problems, self.health.waiting.clone()].concat();
        for problem in &problems {
            if !self.health.problems.contains(problem) {
                error!("{problem}");
            }
        }
        self.dirty |= !findings.repairs.is_empty() || problems != self.health.problems;
        self.health.problems = problems;
        findings
            .repairs
            .iter()
            .any(|(kind, _)| *kind == Kind::Cgroup)
    }

    /// Leaves what older layouts have: first what redirects, when all of their pods are ours or gone;
    /// then the rest, when no socket can be left that was redirected under them.
    fn leave_earlier(&mut self) {
        // Before the first complete listing nobody knows which pods are wanted.
        if self.datapath.earlier.is_empty() || self.running_counts.is_none() {
            return;
        }
        let now = Instant::now();
        if self.health.next_leave.is_some_and(|next| now < next) {
            return;
        }
        self.health.next_leave = Some(now + EVERY);
        let mut waiting = Vec::new();
        let earlier = std::mem::take(&mut self.datapath.earlier);
        for earlier in earlier {
            if earlier.redirects() {
                if let Some(reason) = self.still_judges(&earlier) {
                    waiting.extend(reason);
                } else {
                    match earlier.stop_redirecting() {
                        Ok(()) => info!(
                            version = earlier.version,
                            "the pods are enrolled: removed what redirects in the earlier layout"
                        ),
                        Err(error) => waiting.push(format!(
                            "remove what redirects in layout {}: {error:#}",
                            earlier.version
                        )),
                    }
                }
            } else if !earlier
                .pod_cookies()
                .iter()
                .any(|cookie| self.by_cookie.contains_key(cookie))
            {
                match earlier.remove() {
                    Ok(removed) => {
                        info!(
                            version = earlier.version,
                            links = removed.links.len(),
                            maps = removed.maps.len(),
                            "the last pod of the earlier layout is gone: removed it"
                        );
                        for path in removed.left {
                            warn!("left {}: it is not sidetrack's", path.display());
                        }
                        continue;
                    }
                    Err(error) => {
                        waiting.push(format!("remove layout {}: {error:#}", earlier.version))
                    }
                }
            }
            self.datapath.earlier.push(earlier);
        }
        self.health.waiting = waiting;
    }

    /// Whether pods would slip past their sidecars without what an older layout has attached: `None`
    /// if not, otherwise the problem, if it is one.
    fn still_judges(&self, earlier: &OldLayout) -> Option<Option<String>> {
        let mut left = earlier.live_pods();
        left.retain(|(cookie, _)| !self.by_cookie.contains_key(cookie));
        if left.is_empty() {
            return None;
        }
        let rejected: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, entry)| entry.enrollment.is_none() && entry.state == PodState::Rejected)
            .map(|(name, _)| name.to_string())
            .collect();
        if !rejected.is_empty() {
            return Some(Some(format!(
                "the hooks of layout {} stay, since without them pods that cannot be enrolled may not be intercepted: mend {}, or delete them",
                earlier.version,
                rejected.join(", ")
            )));
        }
        if self.running_counts != Some(true) {
            return None;
        }
        // Pods that are deleted and still run stay intercepted.
        let processes = look_at_processes();
        let released = self.not_taken(&processes);
        let runs = |(_, inode): &(u64, u64)| processes.any_in(*inode) && !released.contains(inode);
        left.iter().any(runs).then_some(None)
    }

    /// Inodes of the namespaces of pods that are to be left alone.
    fn not_taken(&self, processes: &Processes) -> BTreeSet<u64> {
        self.pods
            .values()
            .filter(|entry| entry.state == PodState::NotTaken)
            .filter_map(|entry| {
                let place = NetnsRef::PodUid(entry.uid.clone()?);
                crate::netns::find(&place, processes, None).ok()?.inode
            })
            .collect()
    }
}
