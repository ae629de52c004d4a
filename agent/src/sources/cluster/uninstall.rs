//! Whether sidetrack is being uninstalled. What an agent leaves behind serves its successor; after an
//! uninstall there is none.
//!
//! The DaemonSet alone does not say so: it is deleted and created again when it is replaced, and people
//! delete it to restart everything. Sidetrack is uninstalled when the ConfigMap that was installed with it is
//! deleted as well, or their namespace.

use kube::runtime::watcher::Event;
use sidetrack_policy::facts::ObjectFacts;
use tokio::sync::watch;
use tracing::info;

/// What an agent that ends does with what it installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It stays, for the next agent.
    #[default]
    Keep,
    /// The DaemonSet is deleted. It is not known yet whether another takes its place.
    Undecided,
    /// The API server does not accept the agent's token, so it is not known. It stays.
    Unknown,
    /// Everything is removed.
    Remove,
}

/// The objects that an install consists of.
#[derive(Debug, Default)]
pub(super) struct Uninstall {
    pub(super) ending: watch::Sender<Ending>,
    daemonset: Presence,
    config: Presence,
    /// Whether their namespace is being deleted.
    namespace_ends: bool,
    /// Whether the API server refuses to answer about the DaemonSet.
    is_refused: bool,
}

/// An object that is watched by its name.
#[derive(Debug, Default)]
struct Presence {
    /// Whether it has existed.
    known: bool,
    /// Whether it is in the list that is being read.
    listed: bool,
    deleted: bool,
    /// Whether a list was complete.
    read: bool,
}

impl Presence {
    fn take(&mut self, event: &Event<ObjectFacts>) {
        match event {
            Event::Init => self.listed = false,
            Event::InitApply(object) | Event::Apply(object) => {
                self.known = true;
                self.listed = true;
                self.deleted = object.meta.is_deleted();
            }
            // Deleted while the watch was down. What never existed is not deleted.
            Event::InitDone => {
                self.deleted |= self.known && !self.listed;
                self.read = true;
            }
            Event::Delete(_) => self.deleted = true,
        }
    }
}

impl Uninstall {
    pub(super) fn daemonset(&mut self, event: &Event<ObjectFacts>) {
        self.daemonset.take(event);
        self.decide();
    }

    /// Whether a complete list had no DaemonSet of the configured name, and no event did since.
    pub(super) fn has_wrong_name(&self) -> bool {
        self.daemonset.read && !self.daemonset.known
    }

    pub(super) fn config(&mut self, event: &Event<ObjectFacts>) {
        self.config.take(event);
        self.decide();
    }

    pub(super) fn namespace_ends(&mut self, ends: bool) {
        self.namespace_ends = ends;
        self.decide();
    }

    pub(super) fn refused(&mut self, is_refused: bool) {
        self.is_refused = is_refused;
        self.decide();
    }

    fn decide(&mut self) {
        let ending = match (self.daemonset.deleted, self.config.deleted) {
            _ if self.namespace_ends => Ending::Remove,
            (true, true) => Ending::Remove,
            (true, false) => Ending::Undecided,
            (false, _) if self.is_refused => Ending::Unknown,
            (false, _) => Ending::Keep,
        };
        if ending == *self.ending.borrow() {
            return;
        }
        match (ending, *self.ending.borrow()) {
            // The failed watch is in the log.
            (Ending::Unknown, _) | (Ending::Keep, Ending::Unknown) => {}
            (Ending::Keep, _) => info!("there is a DaemonSet again: interception continues"),
            (Ending::Undecided, _) => info!(
                "the agent's DaemonSet is deleted; unless its ConfigMap of the same name is deleted as well, interception continues when the agent ends"
            ),
            (Ending::Remove, _) => {
                info!("sidetrack is uninstalled: everything is removed when the agent ends");
            }
        }
        self.ending.send_replace(ending);
    }
}

#[cfg(test)]
mod tests;
