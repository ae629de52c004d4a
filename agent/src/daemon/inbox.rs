//! What the main thread hands to the reconciler's thread.

use parking_lot::Mutex;
use tokio::sync::Notify;

use sidetrack_policy::mesh::Mesh;
use sidetrack_reconcile::Listing;

/// Everything that has changed since the reconciler last looked.
#[derive(Debug, Default)]
pub(super) struct Update {
    /// Other settings for all pods.
    pub(super) mesh: Option<Mesh>,
    /// The newest listing.
    pub(super) listing: Option<Listing>,
    /// Why there is no newer listing.
    pub(super) problem: Option<String>,
}

impl Update {
    fn is_empty(&self) -> bool {
        self.mesh.is_none() && self.listing.is_none() && self.problem.is_none()
    }
}

/// A place for one update. Sending never waits: an update that the reconciler has not seen yet is
/// replaced, because a listing and the settings are complete by themselves.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    update: Mutex<Update>,
    arrived: Notify,
    stop: Notify,
}

impl Inbox {
    /// Other settings. A listing must follow: they take effect with it.
    pub(super) fn send_mesh(&self, mesh: Mesh) {
        self.update.lock().mesh = Some(mesh);
        self.arrived.notify_one();
    }

    /// The pods as they are now.
    pub(super) fn send_listing(&self, listing: Listing) {
        let mut update = self.update.lock();
        update.listing = Some(listing);
        update.problem = None;
        drop(update);
        self.arrived.notify_one();
    }

    /// The pods cannot be listed. A listing that waits is still good.
    pub(super) fn send_problem(&self, problem: String) {
        self.update.lock().problem = Some(problem);
        self.arrived.notify_one();
    }

    /// The reconciler is to stop.
    pub(super) fn send_stop(&self) {
        self.stop.notify_one();
    }

    /// Waits for an update. Cancel safe.
    pub(super) async fn next(&self) -> Update {
        loop {
            if let Some(update) = self.take() {
                return update;
            }
            self.arrived.notified().await;
        }
    }

    /// Waits for [`Inbox::send_stop`].
    pub(super) async fn stopped(&self) {
        self.stop.notified().await;
    }

    /// The update that waits, if there is one.
    pub(super) fn take(&self) -> Option<Update> {
        let update = std::mem::take(&mut *self.update.lock());
        (!update.is_empty()).then_some(update)
    }
}

#[cfg(test)]
mod tests;
