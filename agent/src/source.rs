//! Where pods come from: a directory of manifests, or the API server.

use std::path::Path;

use anyhow::Result;

use crate::{
    cluster::Cluster,
    manifests::{Directory, Listing, Watch},
};
use sidetrack_policy::PodRef;

/// One of the two.
pub enum Source {
    /// `--pods-dir`.
    Directory(Directory, Watch),
    /// The API server.
    Cluster(Box<Cluster>),
}

impl Source {
    /// A directory; it must exist.
    ///
    /// # Errors
    /// If it does not, or cannot be watched.
    pub fn directory(path: &Path) -> Result<Self> {
        Ok(Self::Directory(Directory::new(path)?, Watch::new(path)?))
    }

    /// The API server, for the pods of a node, and for the DaemonSet the agent belongs to.
    ///
    /// # Errors
    /// If it is not known where it is.
    pub async fn cluster(node: &str, daemonset: Option<&PodRef>) -> Result<Self> {
        Ok(Self::Cluster(Box::new(
            Cluster::new(node, daemonset).await?,
        )))
    }

    /// Waits until something is different. May be given up at any time.
    pub async fn changed(&mut self) {
        match self {
            Self::Directory(_, watch) => watch.changed().await,
            Self::Cluster(cluster) => cluster.changed().await,
        }
    }

    /// Looks for changes that nobody reports: another directory in the place of the one watched. To
    /// be called now and then.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub fn has_silently_changed(&mut self) -> Result<bool> {
        if let Self::Directory(directory, watch) = self
            && watch.is_outdated()
        {
            *watch = Watch::new(directory.path())?;
            return Ok(true);
        }
        Ok(false)
    }

    /// All pods; `None` until they are known.
    ///
    /// # Errors
    /// If they cannot be read; that says nothing about the pods.
    pub fn list(&mut self) -> Result<Option<Listing>, String> {
        match self {
            Self::Directory(directory, _) => directory.list().map(Some).map_err(|error| {
                let path = directory.path().display();
                format!("list {path}: {error}; its pods stay as they are")
            }),
            Self::Cluster(cluster) => Ok(cluster.list()),
        }
    }

    /// What is wrong with the source itself.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Directory(..) => Vec::new(),
            Self::Cluster(cluster) => cluster.problems(),
        }
    }
}
