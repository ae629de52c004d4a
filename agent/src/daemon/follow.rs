//! The main thread's loop: follows the sources and the settings, and hands every change to the
//! reconciler's thread.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use sidetrack_base::mesh_settings::MeshSettings;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::error;

use super::inbox::Inbox;
use crate::observe::status::Status;
use crate::{
    cni::install::{Keeper, Unmaintained},
    sources::{Source, cluster::taint::keep_away},
};

/// How often changes are looked for that cause no event.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Everything the main thread follows.
pub(super) struct Follower {
    pub(super) source: Source,
    pub(super) settings: MeshSettings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) status: Arc<Status>,
    /// Keeps the CNI plugin in place, if asked to.
    pub(super) cni: Option<Keeper>,
    /// Reports an entry of the plugin that nothing keeps in place.
    pub(super) unmaintained: Option<Unmaintained>,
    /// The node from which the taint is to be removed.
    pub(super) taint: Option<(kube::Client, String)>,
    /// What was wrong when it was last published.
    pub(super) problems: Vec<String>,
}

impl Follower {
    /// Follows until an error; `ready` becomes true when the reconciler has applied the first listing.
    pub(super) async fn run(mut self, mut ready: watch::Receiver<bool>) -> Result<()> {
        let mut look = interval(LOOK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.source.changed() => self.relist(),
                Ok(()) = ready.changed() => self.keep_plugin(),
                _ = look.tick() => {
                    self.look();
                    // Not earlier: a sandbox that is added before the agent is ready waits.
                    let is_ready = *ready.borrow();
                    if is_ready {
                        self.keep_plugin();
                    }
                }
            }
            self.publish_problems();
        }
    }

    /// Hands over the pods as they are now. If the source cannot be read, they stay as they are.
    pub(super) fn relist(&mut self) {
        match self.source.list() {
            Ok(Some(listing)) => self.inbox.send_listing(listing),
            Ok(None) => {}
            Err(problem) => {
                error!("{problem}");
                self.inbox.send_problem(problem);
            }
        }
    }

    /// Looks for changes that cause no event.
    fn look(&mut self) {
        if let Some(mesh) = self.settings.changed() {
            self.inbox.send_mesh(mesh);
            self.relist();
        }
    }

    /// Keeps the CNI plugin in place, and admits new pods to the node once it is.
    fn keep_plugin(&mut self) {
        if let Some(cni) = &mut self.cni {
            cni.turn();
        }
        if let Some(found) = &mut self.unmaintained {
            found.turn();
        }
        let in_place = |cni: &Keeper| cni.is_in_place();
        if self.cni.as_ref().is_none_or(in_place)
            && let Some((client, node)) = self.taint.take()
        {
            tokio::spawn(keep_away(client, node));
        }
    }

    /// Publishes what is wrong with the sources and the settings.
    pub(super) fn publish_problems(&mut self) {
        let mut problems = self.source.problems();
        problems.extend(self.settings.problem().map(str::to_owned));
        let cni = self.cni.as_ref();
        problems.extend(cni.and_then(Keeper::problem).map(str::to_owned));
        let found = self.unmaintained.as_ref();
        problems.extend(found.and_then(Unmaintained::problem).map(str::to_owned));
        if problems != self.problems {
            self.status.publish_source_problems(problems.clone());
            self.problems = problems;
        }
    }
}
