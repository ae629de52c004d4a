//! The main thread's loop: follows the sources and the settings, and hands every change to the
//! reconciler's thread.

use std::{sync::Arc, time::Duration};

use anyhow::{Result, bail};
use sidetrack_base::{mesh_settings::MeshSettings, socket_file::SocketFile};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tracing::error;

use super::{inbox::Inbox, plugin_files::PluginFiles};
use crate::observe::status::Status;
use crate::sources::{Source, cluster::taint::remove_taint};

/// How often changes are looked for that cause no event.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Everything the main thread follows.
pub(super) struct Follower {
    pub(super) source: Source,
    pub(super) settings: MeshSettings,
    pub(super) inbox: Arc<Inbox>,
    pub(super) status: Arc<Status>,
    /// Where clients, the CNI plugin and ztunnel find the agent.
    pub(super) sockets: Vec<SocketFile>,
    /// The CNI plugin's files.
    pub(super) plugin: PluginFiles,
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
                Ok(()) = ready.changed() => self.plugin.look(*ready.borrow()),
                _ = look.tick() => {
                    if let Some(reason) = self.source.obsolete() {
                        bail!(reason);
                    }
                    if let Some(socket) = self.sockets.iter().find(|it| !it.is_there()) {
                        bail!(
                            "{} was removed or replaced, so no one finds this agent: the next one binds it again",
                            socket.path().display()
                        );
                    }
                    self.look().await;
                    let is_ready = *ready.borrow();
                    self.keep_plugin(is_ready);
                    if let Some(reason) = self.plugin.obsolete() {
                        bail!(reason.to_owned());
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
    async fn look(&mut self) {
        if let Some(mesh) = self.settings.changed().await {
            self.inbox.send_mesh(mesh);
            self.relist();
        }
    }

    /// Keeps the CNI plugin in place, and admits new pods to the node once it is.
    fn keep_plugin(&mut self, is_ready: bool) {
        self.plugin.look(is_ready);
        if is_ready
            && self.plugin.is_in_place()
            && let Some((client, node)) = self.taint.take()
        {
            tokio::spawn(remove_taint(client, node));
        }
    }

    /// Publishes what is wrong with the sources and the settings.
    pub(super) fn publish_problems(&mut self) {
        let mut problems = self.source.problems();
        problems.extend(self.settings.problem());
        problems.extend(self.plugin.problem().map(str::to_owned));
        if problems != self.problems {
            self.status.publish_source_problems(problems.clone());
            self.problems = problems;
        }
    }
}
