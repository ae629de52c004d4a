//! The thread that reads the files.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use tokio::sync::watch::Sender;

use super::{Listed, directory::Directory, watch::Watch};

/// How often changes are looked for that cause no event: another directory in place of the watched one.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// While many files are read, their pods are published this often.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// How long one operation may take before the file system counts as one that does not answer.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// Since when the thread waits for the file system.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting(Arc<Mutex<Option<Instant>>>);

impl Waiting {
    /// Whether the file system does not answer.
    pub(super) fn is_silent(&self) -> bool {
        self.0
            .lock()
            .is_some_and(|since| since.elapsed() > SILENT_AFTER)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock() = since;
    }
}

/// Starts it. It ends when the receiver is dropped.
pub(super) fn start(
    directory: Directory,
    watch: Watch,
    sender: Sender<Listed>,
    waiting: Waiting,
) -> Result<()> {
    let mut reader = Reader {
        directory,
        watch,
        sender,
        waiting,
        published: None,
    };
    std::thread::Builder::new()
        .name("pods-dir".to_owned())
        .spawn(move || reader.run())
        .context("start the thread that reads the pods directory")?;
    Ok(())
}

struct Reader {
    directory: Directory,
    watch: Watch,
    sender: Sender<Listed>,
    waiting: Waiting,
    published: Option<Instant>,
}

impl Reader {
    fn run(&mut self) {
        let mut due = true;
        while !self.sender.is_closed() {
            if due && let Err(error) = self.pass() {
                // What can be read again is published even if nothing has changed.
                self.published = None;
                self.sender.send_replace(Some(Err(error.to_string())));
            }
            self.waiting.set(None);
            due = self.watch.wait(LOOK_INTERVAL);
            self.waiting.set(Some(Instant::now()));
            if self.watch.is_outdated() {
                due = true;
                self.watch.renew();
            }
        }
    }

    /// Reads every file that has changed. A file that changes meanwhile takes part.
    fn pass(&mut self) -> io::Result<()> {
        let mut changed = self.directory.scan()?;
        while self.directory.read_next() {
            self.waiting.set(Some(Instant::now()));
            changed = true;
            if self.watch.has_event() {
                self.directory.scan()?;
            }
            // The first listing has all files.
            let is_due = |published: Instant| published.elapsed() >= PUBLISH_INTERVAL;
            if self.published.is_some_and(is_due) {
                self.publish();
                changed = false;
            }
        }
        if changed || self.published.is_none() {
            self.publish();
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.published = Some(Instant::now());
        self.sender.send_replace(Some(Ok(self.directory.listing())));
    }
}
