//! Where pods and settings come from: the API server or a directory of manifests, the CNI plugin, the
//! pods' cgroups, the mesh's defaults.

pub mod cluster;
pub mod cni_requests;
pub mod pod_cgroups;
pub mod pods_dir;

use self::{cluster::Cluster, pods_dir::PodsDir};
use sidetrack_reconcile::Listing;

/// The source of the pods.
pub enum Source {
    /// `--pods-dir`.
    Directory(PodsDir),
    /// The API server.
    Cluster(Box<Cluster>),
}

impl Source {
    /// Waits for a change. Cancel safe.
    pub async fn changed(&mut self) {
        match self {
            Self::Directory(directory) => directory.changed().await,
            Self::Cluster(cluster) => cluster.changed().await,
        }
    }

    /// All pods; `None` until they are known.
    ///
    /// # Errors
    /// If they cannot be read. The pods then stay as they are.
    pub fn list(&mut self) -> Result<Option<Listing>, String> {
        match self {
            Self::Directory(directory) => directory.list(),
            Self::Cluster(cluster) => Ok(cluster.list()),
        }
    }

    /// Why an agent that starts now could read them, and this one cannot.
    pub fn obsolete(&self) -> Option<&'static str> {
        match self {
            Self::Directory(_) => None,
            Self::Cluster(cluster) => cluster.obsolete(),
        }
    }

    /// What is wrong with the source itself.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::Directory(_) => Vec::new(),
            Self::Cluster(cluster) => cluster.problems(),
        }
    }
}
