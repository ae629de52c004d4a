//! The reconciler's view, as it was after its last turn.

use std::{collections::BTreeMap, sync::Arc};

use crate::api::{NetnsStatus, PodStatus};
use sidetrack_common::pod::POD_CAPTURE_V6;
use sidetrack_datapath::{node::KernelNode, reconcile::Reconciler, rows::PodRows};
use sidetrack_policy::PodRef;
use sidetrack_reconcile::{PodState, Record, node::EarlierRows};

/// Everything the reconciler publishes.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Every pod of the reconciler; facts that only the kernel's maps have are still missing.
    pub pods: Vec<PodStatus>,
    /// What is wrong, as sentences.
    pub problems: Vec<String>,
    /// What people should know although nothing is wrong, as sentences.
    pub notes: Vec<String>,
    /// Whether the first full list is applied.
    pub ready: bool,
    /// The pods' cgroup.
    pub cgroup: String,
    /// Repairs by kind.
    pub repairs: BTreeMap<&'static str, u64>,
}

impl Snapshot {
    /// Of the reconciler as it is now.
    #[must_use]
    pub fn of(reconciler: &Reconciler, ready: bool) -> Self {
        Self {
            pods: reconciler
                .core
                .pods()
                .map(|(name, entry)| {
                    let mut pod = pod_status(name, entry, reconciler.partial(name));
                    if pod.is_of_earlier_agent()
                        && let Some(earlier) = reconciler.core.earlier_of(name)
                    {
                        add_earlier(&mut pod, earlier);
                    }
                    pod
                })
                .collect(),
            problems: reconciler.problems(),
            notes: reconciler.notes(),
            ready,
            cgroup: reconciler.core.node.datapath.cgroup().display().to_string(),
            repairs: reconciler.core.repair_counts(),
        }
    }
}

/// Adds where a pod is that is intercepted by the rows of an earlier agent. Its policy is not known.
fn add_earlier(pod: &mut PodStatus, earlier: &EarlierRows<PodRows>) {
    let netns = NetnsStatus::by_inode(earlier.inode.get(), earlier.cookie.get());
    pod.netns = Some(netns);
    pod.policy_id = Some(earlier.rows.policy_id());
    pod.ipv6 = earlier.rows.has(POD_CAPTURE_V6);
}

/// `partial` is why some of its connections are not intercepted although it is enrolled; so is a doubt about its namespace.
fn pod_status(name: &PodRef, entry: &Record<KernelNode>, partial: Option<&str>) -> PodStatus {
    let enrollment = entry.enrollment();
    let doubt = enrollment.and_then(|it| it.doubt.as_deref());
    let (state, reason) = match (entry.state(), partial.or(doubt)) {
        (PodState::Enrolled | PodState::Outdated, Some(partial)) => {
            (PodState::Partial, Some(partial))
        }
        (state, _) => (state, entry.reason()),
    };
    PodStatus {
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        uid: entry.uid.clone(),
        terminating: entry.is_terminating,
        origin: entry.origin.clone(),
        state,
        reason: reason.map(str::to_owned),
        notes: enrollment
            .map(|enrollment| enrollment.notes())
            .unwrap_or_default(),
        netns: enrollment.map(|enrollment| NetnsStatus {
            path: enrollment.path.display().to_string(),
            inode: enrollment.inode.get(),
            cookie: enrollment.cookie.get(),
        }),
        policy_id: enrollment.map(|enrollment| enrollment.policy_id.get()),
        policy: enrollment.map(|enrollment| Arc::clone(&enrollment.policy)),
        ipv6: enrollment.is_some_and(|enrollment| enrollment.rows.has(POD_CAPTURE_V6)),
        ..PodStatus::default()
    }
}
