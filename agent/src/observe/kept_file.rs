//! Files beside the control socket that the agent keeps up to date. Their disk may be full, or not answer: nothing waits for
//! it, and `status` names what is not written.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::warn;

use crate::observe::status::Status;
use sidetrack_base::{files, runtime};

/// How often changes are written.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A file, and what its lack means.
#[derive(Debug)]
pub struct KeptFile {
    status: Arc<Status>,
    path: PathBuf,
    then: &'static str,
}

impl KeptFile {
    /// `then` follows the error of a write, as the end of a sentence.
    #[must_use]
    pub const fn new(status: Arc<Status>, path: PathBuf, then: &'static str) -> Self {
        Self { status, path, then }
    }

    /// Replaces the content; answers whether that was done. A failure is a problem until it succeeds.
    pub async fn write(&self, content: Vec<u8>) -> bool {
        let path = self.path.clone();
        let written = runtime::blocking(move || files::replace(&path, &content, 0o600)).await;
        let problem = written.err().map(|error| {
            format!(
                "{error:#}: {}; free space there, or make it writable",
                self.then
            )
        });
        let is_written = problem.is_none();
        if let Some(problem) = self.status.note_unwritten(&self.path, problem) {
            warn!("{problem}");
        }
        is_written
    }
}

/// Keeps the file of what happened lately up to date; does not end.
pub async fn keep_history(status: Arc<Status>) {
    let then = "the next agent will not know of the latest events";
    let history = status.history();
    let file = KeptFile::new(Arc::clone(&status), history.file().to_owned(), then);
    let mut turns = turns();
    loop {
        turns.tick().await;
        if let Some(content) = history.changed()
            && !file.write(content).await
        {
            history.set_changed();
        }
    }
}

/// When changes are written.
pub(super) fn turns() -> Interval {
    let mut turns = interval(POLL_INTERVAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    turns
}
