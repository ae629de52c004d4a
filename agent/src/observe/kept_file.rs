//! Files beside the control socket that the agent keeps up to date. Their disk may be full, or not answer: nothing waits for
//! it, and `status` names what is not written.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::OFlag;
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior, interval, timeout},
};
use tracing::warn;

use crate::observe::status::Status;
use sidetrack_base::{files, runtime};

/// How often changes are written.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a write may take before the disk counts as one that does not answer.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(5);

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
        let write = runtime::blocking(move || files::replace(&path, &content, 0o600));
        let mut write = pin!(write);
        let written = match timeout(SILENT_AFTER, &mut write).await {
            Ok(written) => written,
            Err(_) => {
                let path = self.path.display();
                self.note(Some(format!("write {path}: its disk does not answer")));
                write.await
            }
        };
        let problem = written.err().map(|error| format!("{error:#}"));
        let is_written = problem.is_none();
        self.note(problem);
        is_written
    }

    fn note(&self, problem: Option<String>) {
        let then = self.then;
        let problem =
            problem.map(|it| format!("{it}: {then}; free space there, or make it writable"));
        if let Some(problem) = self.status.note_unwritten(&self.path, problem) {
            warn!("{problem}");
        }
    }
}

/// The content of a file that an earlier agent may have kept, if there is one.
///
/// # Errors
/// If it cannot be read, is no file, or is longer.
pub(super) fn read(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>> {
    let shown = path.display();
    // A pipe in its place must not block.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits())
        .open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("open {shown}"))?,
    };
    let meta = file.metadata().with_context(|| format!("stat {shown}"))?;
    ensure!(
        meta.is_file() && meta.len() <= max_bytes,
        "{shown} is no file of at most {max_bytes} bytes"
    );
    let mut content = Vec::new();
    file.take(max_bytes)
        .read_to_end(&mut content)
        .with_context(|| format!("read {shown}"))?;
    Ok(Some(content))
}

/// Keeps the file of what happened lately up to date, until it is to stop.
pub async fn keep_history(status: Arc<Status>, stop: watch::Receiver<bool>) {
    let then = "the next agent will not know of the latest events";
    let history = status.history();
    let file = KeptFile::new(Arc::clone(&status), history.file().to_owned(), then);
    let mut turns = Turns::new(stop);
    while turns.next().await {
        if let Some(content) = history.changed()
            && !file.write(content).await
        {
            history.set_changed();
        }
    }
}

/// When changes are written.
pub(super) struct Turns {
    interval: Interval,
    stop: watch::Receiver<bool>,
}

impl Turns {
    pub(super) fn new(stop: watch::Receiver<bool>) -> Self {
        let mut interval = interval(POLL_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { interval, stop }
    }

    /// Waits for the next turn; `false` if there is none. It stops between two writes.
    pub(super) async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => false,
            _ = self.interval.tick() => true,
        }
    }
}
