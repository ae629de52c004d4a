//! Sidecars that listened before anybody asked.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use tracing::warn;

use super::{
    Reconciler,
    entry::{Entry, FIRST_LOOK, LONGEST_LOOK},
    look_at_processes,
};
use sidetrack_policy::PodRef;

impl Reconciler {
    /// Pods whose sidecar is not known to listen and that are to be looked at again: it may have begun
    /// to while nobody was told.
    pub(super) fn without_listener(&mut self) -> Vec<PodRef> {
        let mut known: BTreeMap<u64, BTreeSet<(u16, u16)>> = BTreeMap::new();
        for key in self.datapath.maps.listeners.keys().into_iter().flatten() {
            let of_pod = known.entry(key.netns).or_default();
            of_pod.insert((key.family, key.port));
        }
        let now = Instant::now();
        let mut due = Vec::new();
        for (cookie, name) in &self.by_cookie {
            let Some(entry) = self.pods.get_mut(name) else {
                continue;
            };
            let known = known.remove(cookie).unwrap_or_default();
            let look = &mut entry.look;
            if !known.is_empty() && known.is_superset(&look.known) {
                // Should one vanish from the map although the socket is there.
                look.at = now;
                look.pause = FIRST_LOOK;
                look.known = known;
            } else if look.at <= now {
                look.pause = (look.pause * 2).min(LONGEST_LOOK);
                look.at = now + look.pause;
                look.known = known;
                due.push(name.clone());
            }
        }
        due
    }

    /// Looks at the processes as they are now, after the pods' rows were written: a sidecar that
    /// began to listen before is found here, a later one finds the row.
    pub(super) fn adopt(&self, names: &[PodRef]) {
        if names.is_empty() {
            return;
        }
        let processes = look_at_processes();
        for name in names {
            let enrollment = self.pods.get(name).and_then(Entry::enrollment);
            let adopted = enrollment.map(|it| it.adopt(&processes, &self.datapath.maps));
            if let Some(Err(error)) = adopted {
                warn!(pod = %name, "take over the sidecar's listeners: {error:#}");
            }
        }
    }
}
