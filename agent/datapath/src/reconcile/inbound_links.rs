//! The pods' sk_lookup links, looked at more often than everything else: while one is detached, inbound connections of
//! its pod pass the sidecar. The kernel tells nobody when a link is detached, and a look at one takes a microsecond.

use std::{collections::BTreeMap, os::fd::AsFd as _, time::Instant};

use sidetrack_policy::PodRef;

use super::Reconciler;
use crate::kernel::repair::{Findings, Kind};

/// Links that could not be attached again.
#[derive(Debug, Default)]
pub(super) struct Detached {
    pods: BTreeMap<PodRef, (Instant, String)>,
}

impl Detached {
    /// What is wrong, as sentences.
    pub(super) fn problems(&self) -> Vec<String> {
        let pods = self.pods.iter();
        pods.map(|(name, (since, why))| {
            format!(
                "pod {name}: its sk_lookup link is detached, so that inbound connections pass its sidecar; being repaired since {} s: {why}",
                since.elapsed().as_secs()
            )
        })
        .collect()
    }
}

impl Reconciler {
    /// Attaches again what was detached or has another program. To be called every
    /// [`LINK_INTERVAL`](super::LINK_INTERVAL).
    pub fn keep_inbound_links(&mut self) {
        let datapath = &self.core.node.datapath;
        let detached = datapath.detached_pods();
        if detached.is_empty() && self.detached.pods.is_empty() {
            return;
        }
        let mut findings = Findings::default();
        let mut left = BTreeMap::new();
        for (name, enrollment) in self.core.enrollments() {
            if !detached.contains(&enrollment.cookie) {
                continue;
            }
            // The agent holds the namespace, so that it is there.
            let netns = enrollment.link.netns();
            match datapath.reattach_pod(enrollment.cookie, netns.as_fd()) {
                Ok(()) => findings.repaired(
                    Kind::Link,
                    format!("pod {name}: its sk_lookup link was detached or had another program: repaired it"),
                ),
                Err(problem) => {
                    let known = self.detached.pods.get(name);
                    let since = known.map_or_else(Instant::now, |(since, _)| *since);
                    left.insert(name.clone(), (since, format!("{problem:#}")));
                }
            }
        }
        let was_shown = !self.detached.pods.is_empty();
        self.detached.pods = left;
        self.repairs.count(&findings);
        if was_shown || !self.detached.pods.is_empty() || !findings.repairs.is_empty() {
            self.core.mark_changed();
        }
    }
}
