//! Watches a directory of manifests.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::inotify::AddWatchFlags,
};
use tracing::warn;

use super::files;

/// Editors and `kubectl` write in several steps: wait this long for the rest.
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// A watched directory.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    /// Without events the directory is read each time: containers of root's may hold all inotify instances of the node.
    events: Option<File>,
    inode: Option<u64>,
    /// Whether the directory itself is no more.
    was_removed: bool,
}

impl Watch {
    /// Starts watching; changes from now on are reported.
    pub(super) fn new(path: &Path) -> Self {
        // Before it is watched: one that takes its place in between is another one.
        let inode = files::inode(path).ok();
        let events = files::watch(path).inspect_err(|error| {
            let path = path.display();
            warn!("{path} cannot be watched, so it is read twice a second: {error}");
        });
        Self {
            path: path.to_owned(),
            events: events.ok().map(File::from),
            inode,
            was_removed: false,
        }
    }

    /// Watches the directory that is at the path now.
    pub(super) fn renew(&mut self) {
        *self = Self::new(&self.path);
    }

    /// Whether the watched directory has been replaced by another one. The new one may have the old
    /// inode number.
    ///
    /// # Errors
    /// If the directory cannot be looked at.
    pub(super) fn is_outdated(&self) -> io::Result<bool> {
        let now = files::inode(&self.path)?;
        Ok(Some(now) != self.inode || self.was_removed)
    }

    /// Waits for a change, and for the end of a burst of changes; whether there was one in that time.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        let Some(events) = &self.events else {
            thread::sleep(timeout);
            return true;
        };
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        if poll(&mut polled, timeout) == Ok(0) {
            return false;
        }
        thread::sleep(SETTLE_INTERVAL);
        self.has_event()
    }

    /// Whether there was a change since the last call.
    pub(super) fn has_event(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let mut had_event = false;
        while let Some(events) = &mut self.events
            && let Ok(length @ 1..) = events.read(&mut buffer)
        {
            had_event = true;
            self.was_removed |= has_ended(&buffer[..length]);
        }
        had_event
    }
}

/// Whether the kernel says that the watched directory is no more (`IN_IGNORED` of inotify(7)).
fn has_ended(mut events: &[u8]) -> bool {
    // struct inotify_event: watch, mask, cookie, and the length of the name that follows.
    while let Some((head, rest)) = events.split_first_chunk::<16>() {
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(4) & AddWatchFlags::IN_IGNORED.bits() != 0 {
            return true;
        }
        events = rest.get(word(12) as usize..).unwrap_or_default();
    }
    false
}
