//! What happened lately on this node, for `sidetrack events`: kept in memory, and in a file beside the control socket
//! that the next agent reads.
//!
//! Invariant: there are at most [`MAX_ENTRIES`]. Where one has to go it is the oldest of the pod with most entries, in
//! the namespace with most entries: a restless pod pushes out its own.

mod file;

use std::{
    cmp::Reverse,
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use sidetrack_live::history::{Entry, Kind};
use sidetrack_policy::{
    PodRef,
    text::{cut, escaped},
};
use sidetrack_reconcile::events::{self, PodEvent};
use tracing::warn;

pub use self::file::{path, read};

/// How many entries are kept.
const MAX_ENTRIES: usize = 1_000;
/// How many characters of what happened are kept: a reason with its cure.
pub(super) const MAX_TEXT: usize = 320;

/// The entries of this agent and of those before it.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    log: Mutex<Log>,
}

impl History {
    /// With what earlier agents have written. A file that cannot be used is as none.
    #[must_use]
    pub fn open(path: PathBuf) -> Arc<Self> {
        let entries = read(&path).unwrap_or_else(|problem| {
            warn!("{problem:#}: the list of events begins anew");
            None
        });
        let log = Mutex::new(Log {
            entries: entries.unwrap_or_default(),
            changed: false,
        });
        Arc::new(Self { path, log })
    }

    /// Something happens now.
    pub fn add(&self, kind: Kind, pod: Option<String>, text: &str) {
        self.log.lock().add(Entry {
            time: timestamp(SystemTime::now()),
            first: None,
            count: 1,
            kind,
            pod,
            text: escaped(&cut(text, MAX_TEXT)),
        });
    }

    /// Something happened to a pod, of which people of the cluster hear as well.
    pub fn add_event(&self, event: &PodEvent) {
        let kind = match event.reason {
            events::ENROLLED => Kind::Enrolled,
            events::RELEASED => Kind::Released,
            events::POLICY_CHANGED => Kind::PolicyChanged,
            events::POLICY_REJECTED => Kind::PolicyRejected,
            events::NOT_ENROLLED => Kind::NotEnrolled,
            events::POLICY_ACCEPTED => Kind::PolicyAccepted,
            events::UNKNOWN_ANNOTATION => Kind::UnknownAnnotation,
            _ => Kind::Other,
        };
        self.add(kind, Some(event.pod.to_string()), &event.note);
    }

    /// Something was repaired, of a pod if it was a pod's.
    pub fn add_repair(&self, pod: Option<&PodRef>, text: &str) {
        self.add(Kind::Repaired, pod.map(ToString::to_string), text);
    }

    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.log.lock().entries.clone()
    }

    /// The last entries, oldest first.
    #[must_use]
    pub fn last(&self, count: usize) -> Vec<Entry> {
        let log = self.log.lock();
        let begin = log.entries.len().saturating_sub(count);
        log.entries[begin..].to_vec()
    }

    /// The file that the next agent reads.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// What the file is to have, if that has changed since the last call.
    #[must_use]
    pub fn changed(&self) -> Option<Vec<u8>> {
        let mut log = self.log.lock();
        std::mem::take(&mut log.changed).then(|| file::content(&log.entries))
    }

    /// The file was not written.
    pub fn set_changed(&self) {
        self.log.lock().changed = true;
    }
}

/// A time as entries have it.
#[must_use]
pub fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[derive(Debug, Default)]
struct Log {
    /// Oldest first.
    entries: Vec<Entry>,
    /// Whether the file lacks something.
    changed: bool,
}

impl Log {
    /// Adds one. If it says of its pod again what the last one has said, it takes that one's place.
    fn add(&mut self, mut entry: Entry) {
        let mut of_pod = self.entries.iter().rposition(|it| it.pod == entry.pod);
        let repeats = |last: &Entry| last.kind == entry.kind && last.text == entry.text;
        if let Some(last) = of_pod.take_if(|last| repeats(&self.entries[*last])) {
            let last = self.entries.remove(last);
            entry.count += last.count;
            entry.first = last.first.or(Some(last.time));
        }
        self.entries.push(entry);
        self.changed = true;
        if self.entries.len() > MAX_ENTRIES {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let entries = &self.entries;
        let namespace = heaviest(entries.iter().map(namespace_of));
        let in_it = entries.iter().filter(|it| namespace_of(it) == namespace);
        let pod = heaviest(in_it.map(pod_of));
        if let Some(oldest) = entries.iter().position(|it| pod_of(it) == pod) {
            self.entries.remove(oldest);
        }
    }
}

/// The name that is there most often.
fn heaviest<'a>(names: impl Iterator<Item = &'a str>) -> &'a str {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    // Of several the first by name, so that a test can expect it.
    let most = counts
        .into_iter()
        .max_by_key(|(name, count)| (*count, Reverse(*name)));
    most.map_or("", |(name, _)| name)
}

/// Entries of the node are of the pod without a name.
fn pod_of(entry: &Entry) -> &str {
    entry.pod.as_deref().unwrap_or_default()
}

fn namespace_of(entry: &Entry) -> &str {
    pod_of(entry)
        .split_once('/')
        .map_or("", |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests;
