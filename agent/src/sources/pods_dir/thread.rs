//! The thread that reads the files.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use tokio::sync::watch::Sender;

use super::{Listed, directory::Directory, watch::Watch};

/// How often changes are looked for that cause no event: another directory in place of the watched one.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Files whose file system did not answer are read again this often.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// While many files are read, their pods are published this often.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Starts it. It ends when the receiver is dropped.
pub(super) fn start(path: PathBuf, sender: Sender<Listed>) -> Result<()> {
    let run = move || {
        let mut reader = Reader {
            watch: Watch::new(&path),
            directory: Directory::new(&path),
            sender,
            published: None,
            scanned: Instant::now(),
        };
        reader.run();
    };
    std::thread::Builder::new()
        .name("pods-dir".to_owned())
        .spawn(run)
        .context("start the thread that reads the pods directory")?;
    Ok(())
}

struct Reader {
    directory: Directory,
    watch: Watch,
    sender: Sender<Listed>,
    published: Option<Instant>,
    scanned: Instant,
}

impl Reader {
    fn run(&mut self) {
        let mut due = true;
        while !self.sender.is_closed() {
            if due {
                self.pass().unwrap_or_else(|error| self.fail(&error));
            }
            due = self.watch.wait(LOOK_INTERVAL);
            match self.watch.is_outdated() {
                Ok(true) => {
                    due = true;
                    self.watch.renew();
                }
                Ok(false) => {
                    let is_retry = self.directory.has_silent();
                    due |= self.published.is_none();
                    due |= is_retry && self.scanned.elapsed() >= RETRY_INTERVAL;
                }
                Err(error) => self.fail(&error.into()),
            }
        }
    }

    /// Publishes why there is no listing. The next one is published even if nothing has changed.
    fn fail(&mut self, error: &anyhow::Error) {
        self.published = None;
        let failed = Some(Err(format!("{error:#}")));
        self.sender.send_if_modified(|listed| {
            let is_new =
                !matches!((&listed, &failed), (Some(Err(old)), Some(Err(new))) if old == new);
            listed.clone_from(&failed);
            is_new
        });
    }

    /// Reads every file that has changed. A file that changes meanwhile takes part.
    fn pass(&mut self) -> Result<()> {
        self.scanned = Instant::now();
        let mut changed = self.directory.scan()?;
        while self.directory.read_next() {
            changed = true;
            let is_other = self.watch.has_event() && self.directory.scan()?;
            // The first listing has all files.
            let is_due = |published: Instant| published.elapsed() >= PUBLISH_INTERVAL;
            if self.published.is_some_and(is_due) {
                self.publish();
                changed = false;
            }
            changed |= is_other;
        }
        changed |= self.directory.drop_vanished();
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
