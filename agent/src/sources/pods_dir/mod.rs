//! Pods from a directory of Pod manifests.
//!
//! Invariant: a file that cannot be read keeps the pods it had before, so that a typing error never
//! ends a pod's interception.

mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use sidetrack_policy::{
    manifest::{Document, Problem, read_file},
    pod_ref::PodRef,
};

pub use self::watch::Watch;
use sidetrack_reconcile::Listing;

/// A directory of manifests.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    files: BTreeMap<PathBuf, Known>,
    seen: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// When the file first appeared: of two manifests for one pod the older stays active.
    order: u64,
    documents: Vec<Document>,
    problems: Vec<Problem>,
    unread: bool,
}

impl Known {
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
    /// A directory; it must exist.
    pub fn new(path: &Path) -> Result<Self> {
        let meta = fs::metadata(path).with_context(|| {
            format!(
                "open the pods directory {}; create it or pass another to --pods-dir",
                path.display()
            )
        })?;
        if !meta.is_dir() {
            bail!(
                "{} is not a directory; pass one to --pods-dir",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            files: BTreeMap::new(),
            seen: 0,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the directory again.
    pub fn list(&mut self) -> io::Result<Listing> {
        let mut present = BTreeSet::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if is_manifest(&path) {
                present.insert(path);
            }
        }
        self.files.retain(|path, _| present.contains(path));
        for path in present {
            self.read(path);
        }
        let mut files: Vec<&Known> = self.files.values().collect();
        files.sort_by_key(|file| file.order);
        Ok(Listing {
            pods: files
                .iter()
                .flat_map(|file| file.documents.clone())
                .collect(),
            problems: files
                .iter()
                .flat_map(|file| file.problems.clone())
                .collect(),
            complete: files.iter().all(|file| !file.unread),
            running_counts: false,
        })
    }

    fn read(&mut self, path: PathBuf) {
        let seen = &mut self.seen;
        let known = self.files.entry(path.clone()).or_insert_with(|| {
            *seen += 1;
            Known {
                order: *seen,
                unread: true,
                ..Known::default()
            }
        });
        match read_file(&path) {
            Ok((documents, problems)) => {
                known.unread = !problems.is_empty() && known.unread;
                known.replace(&path, documents, problems);
            }
            Err(error) => {
                known.problems = vec![Problem {
                    origin: path.display().to_string(),
                    message: format!("{error:#}; the pods it named last stay as they are"),
                }];
            }
        }
    }
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let extension = path.extension().and_then(|extension| extension.to_str());
    !hidden && matches!(extension, Some("yaml" | "yml" | "json"))
}

#[cfg(test)]
mod tests;
