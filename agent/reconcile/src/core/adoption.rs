//! Sidecars that listened before the kernel programs could see it.

use sidetrack_policy::PodRef;
use tracing::warn;

use super::Core;
use crate::{
    node::Node,
    plan::Step,
    state::{FIRST_SEARCH_PAUSE, LONGEST_SEARCH_PAUSE},
};

impl<N: Node> Core<N> {
    /// Pods whose sidecar is not known to listen on each of its ports and whose search is due: it may have begun to listen
    /// while no kernel program saw it.
    pub(super) fn without_listener(&mut self) -> Vec<PodRef> {
        let mut known_by_pod = self.node.listeners();
        let now = self.node.now();
        let mut due = Vec::new();
        for (name, record) in &mut self.pods {
            let Some(enrollment) = record.enrollment() else {
                continue;
            };
            let known = known_by_pod.remove(&enrollment.cookie).unwrap_or_default();
            // A search that ended early may have found one port and not the other. Which families a sidecar serves is its
            // own matter.
            let mut ports = enrollment.policy.listener_ports().into_iter();
            let has_all = ports.all(|port| known.iter().any(|(_, known)| *known == port));
            let search = &mut record.search;
            if has_all && known.is_superset(&search.known) {
                // Should one vanish from the map although its socket is open.
                search.at = now;
                search.pause = FIRST_SEARCH_PAUSE;
                search.known = known;
            } else if search.at <= now {
                search.pause = (search.pause * 2).min(LONGEST_SEARCH_PAUSE);
                search.at = now + search.pause;
                search.known = known;
                due.push(name.clone());
            }
        }
        due
    }

    /// Puts open listeners into the map, after the pods' rows were written: a sidecar that began to
    /// listen before is found here, a later one finds the row.
    pub(super) async fn adopt(&mut self, names: &[PodRef]) {
        if names.is_empty() {
            return;
        }
        let processes = self.processes();
        for name in names {
            let record = self.pods.get_mut(name);
            let Some(enrollment) = record.and_then(|it| it.enrollment_mut()) else {
                continue;
            };
            let step = Step::AdoptListeners(&enrollment.policy, &processes);
            let (cookie, rows) = (enrollment.cookie, &mut enrollment.rows);
            let adopted = self
                .node
                .step(cookie, rows, Some(&mut enrollment.link), &step)
                .await;
            if let Err(problem) = adopted {
                warn!(pod = %name, "take over the sidecar's listeners: {problem}");
            }
        }
    }
}
