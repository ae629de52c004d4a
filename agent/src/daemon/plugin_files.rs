//! The CNI plugin's files, as the main thread sees them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use sidetrack_datapath::foreign_files;
use tokio::sync::oneshot;
use tracing::{error, info};

use crate::cni::upkeep::{Plugin, Removal, State, Turn};

/// For whose quota these calls count.
const HOLDER: &str = "the CNI plugin";
/// A turn that takes longer is a problem.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);
/// For the removal of the entry.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The files, and the turn that looks at them.
pub(super) struct PluginFiles {
    plugin: Plugin,
    turn: Option<(Instant, oneshot::Receiver<std::io::Result<State>>)>,
    state: State,
}

impl PluginFiles {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self {
            plugin,
            turn: None,
            state: State::default(),
        }
    }

    /// Looks at the files, unless the last look has not ended; to be called about twice a second. Until the agent is
    /// ready nothing is put in place: a sandbox that is added then would wait.
    pub(super) fn look(&mut self, is_ready: bool) {
        if let Some((since, outcome)) = &mut self.turn {
            match outcome.try_recv() {
                Ok(outcome) => {
                    self.turn = None;
                    self.take(outcome);
                }
                Err(oneshot::error::TryRecvError::Empty) => {
                    if since.elapsed() > TURN_TIMEOUT {
                        let text = format!("the node's disk does not answer for {TURN_TIMEOUT:?}");
                        self.take(Err(std::io::Error::other(text)));
                    }
                    return;
                }
                Err(oneshot::error::TryRecvError::Closed) => self.turn = None,
            }
        }
        let is_due = match self.plugin {
            Plugin::Ignore(None) => false,
            Plugin::Ignore(Some(_)) | Plugin::Keep(_) => is_ready,
            Plugin::Remove(_) => !self.state.in_place,
        };
        if is_due {
            let (sender, outcome) = oneshot::channel();
            foreign_files::start(HOLDER, &Turn(self.plugin.clone()), move |outcome| {
                let _ = sender.send(outcome.map(|(state, _)| state));
            });
            self.turn = Some((Instant::now(), outcome));
        }
    }

    fn take(&mut self, outcome: std::io::Result<State>) {
        let state = outcome.unwrap_or_else(|error| State {
            problem: Some(format!("CNI plugin: {error}")),
            ..State::default()
        });
        for what in &state.done {
            info!("CNI plugin: {what}");
        }
        if let Some(problem) = &state.problem
            && self.state.problem != state.problem
        {
            error!("{problem}");
        }
        self.state = state;
    }

    /// Whether everything is as it has to be, as far as pods of this node need it.
    pub(super) fn is_in_place(&self) -> bool {
        self.state.in_place || matches!(self.plugin, Plugin::Ignore(_))
    }

    /// Why the agent has to end and start again.
    pub(super) fn obsolete(&self) -> Option<&str> {
        self.state.obsolete.as_deref()
    }

    /// What is wrong.
    pub(super) fn problem(&self) -> Option<&str> {
        self.state.problem.as_deref()
    }
}

/// Removes the plugin's entry for an uninstall.
pub(super) async fn remove(plugin: &Plugin) -> Result<()> {
    let removal = Removal(plugin.clone());
    let then = "remove the CNI plugin's entry: until it is gone no pod can start on this node";
    let (state, _) = foreign_files::ask(HOLDER, &removal, REMOVAL_TIMEOUT)
        .await
        .context(then)?;
    for what in state.done {
        info!("CNI plugin: {what}");
    }
    state
        .problem
        .map_or(Ok(()), |problem| Err(anyhow!(problem).context(then)))
}
