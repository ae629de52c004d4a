//! Compares everything in the kernel with what was written there, repairs it, or reports what is wrong.

use std::{collections::BTreeMap, os::fd::AsFd as _, path::Path, time::Instant};

use anyhow::Result;
use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use tracing::{error, warn};

use super::{REPAIR_INTERVAL, Reconciler};
use crate::{
    kernel::{
        Datapath,
        repair::{Findings, Kind},
    },
    netns::{Netns, inode_at},
    node::steps::end_before_sidecar,
};

/// What was repaired so far, and what is wrong.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// What stays wrong until a person fixes it.
    pub(super) problems: Vec<String>,
    /// What people should know although nothing is wrong.
    pub(super) notes: Vec<String>,
    counts: BTreeMap<Kind, u64>,
    /// About older layouts.
    pub(super) layout_problems: Vec<String>,
}

impl Repairs {
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let count = |kind: Kind| self.counts.get(&kind).copied().unwrap_or_default();
        let all = Kind::ALL.into_iter();
        all.map(|kind| (kind.name(), count(kind))).collect()
    }

    /// Logs and counts what was repaired.
    pub(super) fn count(&mut self, findings: &Findings) {
        for (kind, text) in &findings.repairs {
            warn!("{text}");
            *self.counts.entry(*kind).or_default() += 1;
        }
    }

    /// Logs and counts what was found; answers whether the cgroup is another one now.
    fn note(&mut self, findings: Findings) -> bool {
        self.count(&findings);
        let problems = [findings.problems, self.layout_problems.clone()].concat();
        for problem in problems.iter().filter(|it| !self.problems.contains(it)) {
            error!("{problem}");
        }
        self.problems = problems;
        self.notes = findings.notes;
        let mut kinds = findings.repairs.iter().map(|(kind, _)| *kind);
        kinds.any(|kind| kind == Kind::Cgroup)
    }
}

impl Reconciler {
    /// Compares everything when it is time to; answers whether the cgroup is another one now. To be
    /// called twice a second.
    pub async fn repair(&mut self) -> bool {
        self.retire_layouts();
        let now = Instant::now();
        if self.next_repair.is_some_and(|next| now < next) {
            return false;
        }
        self.next_repair = Some(now + REPAIR_INTERVAL);
        let mut findings = Findings::default();
        // Rows first: a program that is attached again finds them complete.
        self.repair_policies(&mut findings);
        self.repair_rows(&mut findings);
        self.remove_unknown_pods(&mut findings);
        self.core.node.datapath.repair(&mut findings);
        self.keep_links_pinned(&mut findings);
        self.repair_callbacks(&mut findings);
        self.repair_forwarding(&mut findings).await;
        let unloaded = self.core.node.datapath.unload_acceleration();
        findings.tried(unloaded.map(|()| None));
        for (_, it) in self.core.enrollments() {
            let node = &self.core.node;
            node.make_transparent(&it.rows, &it.link, &it.policy);
        }
        self.repair_earlier(&mut findings).await;
        self.sweep_handshakes(&mut findings);
        let swept = self.core.node.departed.sweep(&self.core.node.datapath.maps);
        if let Err(problem) = swept {
            findings.problems.push(format!("{problem:#}"));
        }
        let before = (self.repairs.problems.clone(), self.repairs.notes.clone());
        let repaired = !findings.repairs.is_empty();
        let moved = self.repairs.note(findings);
        let now = (&self.repairs.problems, &self.repairs.notes);
        if repaired || (&before.0, &before.1) != now {
            self.core.mark_changed();
        }
        moved
    }

    fn repair_policies(&mut self, findings: &mut Findings) {
        let maps = &self.core.node.datapath.maps;
        let in_use = self.core.policies().in_use();
        match self.policy_repair.repair(in_use, maps, &mut self.buffer) {
            Ok(0) => {}
            Ok(rows) => findings.repaired(
                Kind::Row,
                format!("{rows} rows of policies were missing: wrote them again"),
            ),
            Err(problem) => findings
                .problems
                .push(format!("compare the rows of policies: {problem:#}")),
        }
    }

    fn repair_rows(&mut self, findings: &mut Findings) {
        let maps = &self.core.node.datapath.maps;
        for (name, enrollment) in self.core.enrollments() {
            let rows = enrollment.rows.repair(maps, &mut self.buffer);
            // The kernel programs see the first listener, unless they are detached just then.
            let repaired = rows.map_err(anyhow::Error::from).and_then(|rows| {
                let ended = end_before_sidecar(
                    enrollment.cookie,
                    &enrollment.link,
                    &enrollment.policy,
                    maps,
                )?;
                Ok(rows + usize::from(ended))
            });
            match repaired {
                Ok(0) => {}
                Ok(rows) => findings.repaired(
                    Kind::Row,
                    format!(
                        "{rows} rows of pod {name} were missing or different: wrote them again"
                    ),
                ),
                Err(problem) => findings
                    .problems
                    .push(format!("compare the rows of pod {name}: {problem:#}")),
            }
        }
    }

    /// Removes rows of pods that no agent enrolled.
    fn remove_unknown_pods(&mut self, findings: &mut Findings) {
        let maps = &self.core.node.datapath.maps;
        let cookies = match maps.pods.keys() {
            Ok(cookies) => cookies,
            Err(problem) => return findings.problems.push(format!("list pods: {problem}")),
        };
        let known = self.core.known_cookies();
        for cookie in cookies {
            if known.contains(&NetnsCookie::new(cookie)) {
                continue;
            }
            match maps.pods.remove(&cookie) {
                Ok(_) => findings.repaired(
                    Kind::Row,
                    format!("no agent enrolled the pod with cookie {cookie}: removed its row"),
                ),
                Err(problem) => findings.problems.push(format!(
                    "remove the row of a pod that no agent enrolled: {problem}"
                )),
            }
        }
    }

    fn keep_links_pinned(&mut self, findings: &mut Findings) {
        let datapath = &self.core.node.datapath;
        for (name, enrollment) in self.core.enrollments() {
            let pinned = datapath.keep_pod_pinned(enrollment.cookie);
            let named = |text| (Kind::Pin, format!("pod {name}: {text}"));
            findings.tried(pinned.map(|repair| repair.map(named)));
        }
    }

    /// Before the first listing is complete, pods may not be known that need the callbacks on the cgroup of
    /// all pods; those have no link of their own, and are seen by that.
    fn repair_callbacks(&mut self, findings: &mut Findings) {
        let enrollments = self.core.enrollments();
        let pods: Vec<_> = enrollments
            .map(|(name, it)| (name.clone(), it.cookie, it.rows.uid()))
            .collect();
        let datapath = &mut self.core.node.datapath;
        datapath.keep_callbacks(&pods, |name, kept| {
            let named = |text| (Kind::Link, format!("pod {name}: {text}"));
            findings.tried(kept.map(|repair| repair.map(named)));
        });
        findings.tried(datapath.release_callbacks().map(|()| None));
    }

    /// The programs for packets that pass through pods. What is detached is attached again when the pod's interfaces
    /// are read again, if it still has that one.
    async fn repair_forwarding(&mut self, findings: &mut Findings) {
        let detached = self.core.node.datapath.repair_forwarding(findings);
        if detached.is_empty() {
            return;
        }
        let pods = detached.iter().map(|(cookie, _)| *cookie).collect();
        self.core.namespaces_changed(&pods).await;
        let datapath = &self.core.node.datapath;
        for (name, enrollment) in self.core.enrollments() {
            let of_pod = detached.iter().filter(|(it, _)| *it == enrollment.cookie);
            for (cookie, ifindex) in of_pod {
                if datapath.has_forwarding(*cookie, *ifindex) {
                    let text = format!(
                        "pod {name}: the program for forwarded packets was detached from interface {ifindex}: attached it again"
                    );
                    findings.repaired(Kind::Link, text);
                }
            }
        }
    }

    /// Pods that an earlier agent enrolled and this one could not, such as one whose manifest cannot be
    /// followed: repairs their links, and removes those that are gone.
    async fn repair_earlier(&mut self, findings: &mut Findings) {
        let node = &self.core.node;
        let mut detached = self.core.left_by_earlier();
        detached.retain(|(cookie, inode, _)| !node.datapath.is_attached(*cookie, *inode));
        if detached.is_empty() {
            return;
        }
        let inodes = detached.iter().map(|(_, inode, _)| inode.get()).collect();
        let processes = node.processes_in(inodes, None);
        for (cookie, inode, name) in detached {
            if let Some(path) = processes.path_of(inode.get()) {
                let datapath = &self.core.node.datapath;
                let repaired = repair_link(datapath, cookie, &path, inode);
                let named = |(kind, text)| (kind, format!("pod {name}: {text}"));
                findings.tried(repaired.map(|repair| repair.map(named)));
            } else if !processes.any_in(inode.get()) {
                self.core.forget_earlier(cookie).await;
            }
        }
    }
}

/// Repairs the link of an earlier agent's pod; answers what was done.
fn repair_link(
    datapath: &Datapath,
    cookie: NetnsCookie,
    path: &Path,
    inode: NetnsInode,
) -> Result<Option<(Kind, String)>> {
    // The namespace may be about to be replaced; then the pod is enrolled again.
    if inode_at(path) != Some(inode.get()) {
        return Ok(None);
    }
    let netns = Netns::open(path)?;
    if netns.cookie() != cookie.get() {
        return Ok(None);
    }
    datapath.reattach_pod(cookie, netns.as_fd())?;
    let text = "its sk_lookup link was detached or had another program: repaired it";
    Ok(Some((Kind::Link, text.to_owned())))
}
