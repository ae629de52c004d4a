//! The files of a directory of manifests, and what they said when they were last read.
//!
//! Invariants: a file that cannot be read keeps the pods it had before, so that a typing error never ends a pod's
//! interception. A file that is gone keeps them until all others are read: they may be in one of those.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, bail};
use sidetrack_policy::{
    manifest::{Contents, Document, Problem, parse_pods},
    pod_ref::PodRef,
};
use sidetrack_reconcile::Listing;

use super::files::{self, Stamp};

/// How many pods all files may have: as many as the maps have rows for.
const MAX_PODS: usize = 4096;
/// How many links are waited for. When that many do not answer, further links are not read.
const MAX_SILENT_LINKS: usize = 8;
/// How many bytes all files may have.
const MAX_TOTAL: u64 = 64 << 20;

/// A directory of manifests.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    files: BTreeMap<PathBuf, Known>,
    seen: u64,
    /// How many reads there were.
    reads: u64,
}

/// A file.
#[derive(Debug, Default)]
struct Known {
    /// When the file first appeared: of two manifests for one pod the older stays active.
    order: u64,
    documents: Vec<Document>,
    problems: Vec<Problem>,
    unread: bool,
    size: u64,
    /// What the file was like when it was last read.
    stamp: Option<Stamp>,
    /// When it was found to have changed, until it is read.
    changed: Option<Instant>,
    /// Whether it is gone.
    has_vanished: bool,
    is_link: bool,
    /// Whether its file system did not answer.
    is_silent: bool,
}

/// A file that is beyond a bound of the whole directory.
#[derive(Debug, thiserror::Error)]
#[error("with it the directory would have more than {0}; remove other files")]
struct NoRoom(String);

impl Known {
    /// It could not be read. The pods it named last stay as they are. Returns whether that is news.
    fn fail(&mut self, path: &Path, error: &anyhow::Error) -> bool {
        let problems = vec![Problem {
            origin: path.display().to_string(),
            message: format!("{error:#}; the pods it named last stay as they are"),
        }];
        self.changed = None;
        let is_news = self.problems != problems;
        self.problems = problems;
        is_news
    }

    /// Takes what the file says now. A pod that is not found any more in a file that is partly
    /// unreadable, or that has been emptied (often only for a moment), keeps its last manifest.
    fn replace(&mut self, path: &Path, now: Vec<Document>, problems: Vec<Problem>) {
        let before = std::mem::replace(&mut self.documents, now);
        self.problems = problems;
        let emptied = self.documents.is_empty() && self.problems.is_empty();
        if !emptied && self.problems.is_empty() {
            return;
        }
        let found: BTreeSet<PodRef> = self.documents.iter().map(Document::name).collect();
        let missing: Vec<Document> = before
            .into_iter()
            .filter(|old| !found.contains(&old.name()))
            .collect();
        if missing.is_empty() {
            return;
        }
        let names: Vec<String> = missing.iter().map(|old| old.name().to_string()).collect();
        self.problems.push(Problem {
            origin: path.display().to_string(),
            message: format!(
                "{} cannot be read from it any more and stay as they are; to take pods out, remove the file",
                names.join(", ")
            ),
        });
        self.documents.extend(missing);
    }
}

impl Directory {
    /// A directory.
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            files: BTreeMap::new(),
            seen: 0,
            reads: 0,
        }
    }

    /// Looks for files that are new, changed or gone; whether the listing is another one by that. The changed ones are
    /// still to be read.
    pub(super) fn scan(&mut self) -> Result<bool> {
        let entries = files::list(&self.path)?.into_iter();
        let entries = entries.map(|entry| (self.path.join(&entry.name), entry));
        let present: BTreeMap<PathBuf, _> = entries.collect();
        let mut is_other = false;
        for (path, known) in &mut self.files {
            let has_vanished = !present.contains_key(path);
            is_other |= has_vanished && !known.has_vanished;
            known.has_vanished = has_vanished;
            known.changed = known.changed.filter(|_| !has_vanished);
        }
        let mut silent = 0;
        for (path, entry) in present {
            let stamp = match entry.stamp {
                Some(stamp) => Ok(stamp),
                None if silent >= MAX_SILENT_LINKS => Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!(
                        "it is not read, since {MAX_SILENT_LINKS} other links lead to file systems that do not answer"
                    ),
                )),
                None => files::look_behind(&path),
            };
            let seen = &mut self.seen;
            let known = self.files.entry(path.clone()).or_insert_with(|| {
                *seen += 1;
                Known {
                    order: *seen,
                    unread: true,
                    ..Known::default()
                }
            });
            known.is_link = entry.stamp.is_none();
            known.size = stamp.as_ref().map_or(0, |stamp| stamp.size);
            match stamp {
                Ok(stamp) if known.stamp == Some(stamp) && !known.is_silent => {}
                // Reading says what is wrong with a link that leads nowhere.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
                    ) =>
                {
                    silent += 1;
                    known.is_silent = true;
                    is_other |= known.fail(&path, &error.into());
                }
                _ => {
                    known.changed.get_or_insert_with(Instant::now);
                }
            }
        }
        Ok(is_other)
    }

    /// Forgets files that are gone, once all others are read; whether there were any.
    pub(super) fn drop_vanished(&mut self) -> bool {
        let before = self.files.len();
        self.files.retain(|_, known| !known.has_vanished);
        self.files.len() < before
    }

    /// Whether a file's file system did not answer: that it answers again is no event.
    pub(super) fn has_silent(&self) -> bool {
        self.files.values().any(|known| known.is_silent)
    }

    /// The changed file to read next: in turns the smallest and the one that has waited longest. So a small file waits
    /// for two others at most, and no number of them keeps a large one from being read.
    fn next(&self) -> Option<PathBuf> {
        let changed = || {
            self.files
                .iter()
                .filter(|(_, known)| known.changed.is_some())
        };
        let next = match self.reads % 2 {
            0 => changed().min_by_key(|(_, known)| known.size),
            _ => changed().min_by_key(|(_, known)| known.changed),
        };
        next.map(|(path, _)| path.clone())
    }

    /// Reads a changed file; `false` if there is none.
    pub(super) fn read_next(&mut self) -> bool {
        let Some(path) = self.next() else {
            // A small file that comes next is read at once.
            self.reads = 0;
            return false;
        };
        self.reads += 1;
        let (stamp, contents) = self.contents(&path);
        let Some(known) = self.files.get_mut(&path) else {
            return false;
        };
        // Of a file that is written while it is read, the next scan finds another stamp.
        known.stamp = stamp.filter(Stamp::is_final);
        if contents.as_ref().is_err_and(|error| error.is::<NoRoom>()) {
            // There may be room at the next scan.
            known.stamp = None;
        }
        known.changed = None;
        known.is_silent = stamp.is_none()
            && contents
                .as_ref()
                .is_err_and(|error| error.is::<io::Error>());
        match contents {
            Ok((documents, problems)) => {
                known.unread = !problems.is_empty() && known.unread;
                known.replace(&path, documents, problems);
            }
            Err(error) => {
                known.fail(&path, &error);
            }
        }
        true
    }

    /// Reads a file within the bounds of the whole directory.
    fn contents(&self, path: &Path) -> (Option<Stamp>, Result<Contents>) {
        let is_there = |known: &Known| !known.has_vanished;
        let others = || {
            let others = self.files.iter();
            others.filter(|(other, known)| *other != path && is_there(known))
        };
        let own = self.files.get(path).map_or(0, |known| known.size);
        let read = others().filter(|(_, known)| known.changed.is_none());
        if own + read.map(|(_, known)| known.size).sum::<u64>() > MAX_TOTAL {
            let most = format!("{} MiB", MAX_TOTAL >> 20);
            return (None, Err(NoRoom(most).into()));
        }
        let is_link = self.files.get(path).is_some_and(|known| known.is_link);
        let (stamp, text) = files::read(path, is_link);
        let contents = text.and_then(|text| parse_pods(path, &text));
        let pods: usize = others().map(|(_, known)| known.documents.len()).sum();
        let contents = contents.and_then(|contents| {
            if pods + contents.0.len() > MAX_PODS {
                bail!(NoRoom(format!("{MAX_PODS} pods")));
            }
            Ok(contents)
        });
        (stamp, contents)
    }

    /// The pods as the files were last read.
    pub(super) fn listing(&self) -> Listing {
        let mut files: Vec<&Known> = self.files.values().collect();
        files.sort_by_key(|file| file.order);
        let (vanished, files): (Vec<&Known>, Vec<&Known>) =
            files.into_iter().partition(|file| file.has_vanished);
        let mut pods: Vec<Document> = files
            .iter()
            .flat_map(|file| file.documents.clone())
            .collect();
        let named: BTreeSet<PodRef> = pods.iter().map(Document::name).collect();
        let remains = |gone: &&Document| {
            // Nor one whose network another pod has now.
            let has_netns = |pod: &Document| pod.netns.is_ok() && pod.netns == gone.netns;
            !named.contains(&gone.name()) && !pods.iter().any(has_netns)
        };
        let gone = vanished.into_iter().flat_map(|file| &file.documents);
        let gone: Vec<Document> = gone.filter(remains).cloned().collect();
        pods.extend(gone);
        Listing {
            pods,
            problems: files
                .iter()
                .flat_map(|file| file.problems.clone())
                .collect(),
            complete: files.iter().all(|file| !file.unread),
            running_counts: false,
        }
    }
}

#[cfg(test)]
mod tests;
