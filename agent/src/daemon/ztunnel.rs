//! What ztunnel is to serve, as the reconciler has it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use anyhow::Result;
use sidetrack_ambient::{Netns, Server, Table, Workload, workload_uid};
use sidetrack_base::socket_file::SocketFile;
use sidetrack_datapath::{node::KernelNode, reconcile::Reconciler};
use sidetrack_policy::{
    PodRef,
    mesh::MeshName,
    names::ambient::{REDIRECTED, REDIRECTION},
};
use sidetrack_reconcile::{Enrollment, PodState, Record};
use tokio::sync::watch;

use crate::sources::{
    Source,
    cluster::{Redirection, Redirections, redirection},
};

/// Where the reconciler publishes what ztunnel is to serve.
pub(super) struct Publisher {
    table: Arc<Table>,
    /// Where ztunnel finds it.
    pub(super) socket: SocketFile,
    /// To istiod, by annotations. A directory of manifests has none.
    redirections: Option<watch::Sender<Redirections>>,
}

impl Publisher {
    /// Serves ztunnel, if a path is given. It waits for the first pods that are published.
    ///
    /// # Errors
    /// If another agent serves it, or its socket cannot be bound.
    pub(super) fn start(path: Option<&Path>, source: &Source) -> Result<Option<Self>> {
        let Some(path) = path else {
            return Ok(None);
        };
        let server = Server::bind(path)?;
        let socket = server.file().clone();
        let table = Arc::<Table>::default();
        tokio::spawn(server.serve(Arc::clone(&table)));
        let redirections = match source {
            Source::Cluster(cluster) => {
                let (sender, differing) = watch::channel(Redirections::new());
                tokio::spawn(redirection::keep(cluster.client(), differing));
                Some(sender)
            }
            Source::Directory(_) => None,
        };
        Ok(Some(Self {
            table,
            socket,
            redirections,
        }))
    }

    /// What ztunnel has answered.
    pub(super) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table)
    }

    /// Publishes the pods. To be called once it is known which of an earlier agent's are still there.
    pub(super) fn publish(&self, reconciler: &Reconciler) {
        self.table.set(workloads(reconciler));
        if let Some(published) = &self.redirections {
            let wanted = redirections(reconciler);
            published.send_if_modified(|present| {
                let differs = *present != wanted;
                *present = wanted;
                differs
            });
        }
    }
}

/// The pods by uid. One that is not enrolled yet is among them without a namespace: ztunnel, which may serve it for an
/// earlier agent, is not to forget it.
fn workloads(reconciler: &Reconciler) -> BTreeMap<String, Workload> {
    let pods = reconciler.core.pods();
    let workloads = pods.filter_map(|(name, record)| {
        let uid = workload_uid(record.uid.as_deref(), &name.namespace, &name.name);
        Some((uid, workload(name, record)?))
    });
    workloads.collect()
}

/// The pods whose annotation of ambient mode is not as it should be.
fn redirections(reconciler: &Reconciler) -> Redirections {
    let pods = reconciler.core.pods();
    let differing = pods.filter_map(|(name, record)| {
        let is_set = record.annotation(REDIRECTION)? == Some(REDIRECTED);
        let is_in = record.enrollment().is_some_and(is_ambient);
        // One that waits keeps what an earlier agent has written.
        let is_decided = record.enrollment().is_some() || record.state() == PodState::Skipped;
        let uid = record.uid.clone();
        (is_decided && is_set != is_in).then(|| (name.clone(), Redirection { uid, is_in }))
    });
    differing.collect()
}

fn is_ambient(enrollment: &Enrollment<KernelNode>) -> bool {
    enrollment.policy.dialect.mesh() == MeshName::Ambient
}

fn workload(name: &PodRef, record: &Record<KernelNode>) -> Option<Workload> {
    let netns = match record.enrollment() {
        Some(enrollment) if is_ambient(enrollment) => Some(Netns {
            inode: enrollment.inode.get(),
            open: enrollment.link.shared_netns(),
        }),
        Some(_) => return None,
        None => match record.state() {
            PodState::Waiting | PodState::Enrolled | PodState::Outdated | PodState::Partial => None,
            PodState::Rejected | PodState::Skipped => return None,
        },
    };
    Some(Workload {
        name: name.name.clone(),
        namespace: name.namespace.clone(),
        service_account: record.service_account().unwrap_or_default().to_owned(),
        netns,
    })
}
