//! The policies of enrolled pods, beside the control socket: `rules` and `explain` read them while no agent
//! answers. The kernel's maps have a policy's rows only, in which names of interfaces and the order of lists are
//! lost.
//!
//! A policy from the file counts only if the pod's row in the kernel has the same policy id, so that what is
//! shown is what is in force.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use sidetrack_policy::{PodRef, Policy};
use tokio::{sync::watch, time::timeout};
use tracing::debug;

use crate::api::PodStatus;
use crate::observe::{
    kept_file::{self, KeptFile, SILENT_AFTER, Turns},
    status::Status,
};
use sidetrack_base::runtime;
use sidetrack_datapath::kernel::maps::Maps;

/// More than the policies of all pods that an agent follows, whose manifests have half of it.
const MAX_SIZE: u64 = 64 << 20;

/// An enrolled pod's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastPolicy {
    /// `namespace/name`.
    pub pod: String,
    /// Cookie of its network namespace.
    pub cookie: u64,
    /// The policy's number in the kernel's maps.
    pub policy_id: u32,
    /// As in [`PodStatus::policy`].
    pub policy: Arc<Policy>,
    /// Whether its IPv6 connections are intercepted.
    pub ipv6: bool,
}

impl LastPolicy {
    fn of(pod: &PodStatus) -> Option<Self> {
        Some(Self {
            pod: pod.full_name(),
            cookie: pod.netns.as_ref()?.cookie,
            policy_id: pod.policy_id?,
            policy: Arc::clone(pod.policy.as_ref()?),
            ipv6: pod.ipv6,
        })
    }
}

/// The file. Policies are shared by pods in it as they are in the agent.
#[derive(Debug, Serialize, Deserialize)]
struct File<P> {
    policies: Vec<P>,
    pods: Vec<FilePod>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FilePod {
    pod: String,
    cookie: u64,
    policy_id: u32,
    /// Place in [`File::policies`].
    policy: usize,
    ipv6: bool,
}

fn contents(all: &[LastPolicy]) -> File<&Policy> {
    let mut places: HashMap<*const Policy, usize> = HashMap::new();
    let mut policies = Vec::new();
    let pods = all.iter().map(|it| FilePod {
        pod: it.pod.clone(),
        cookie: it.cookie,
        policy_id: it.policy_id,
        policy: *places.entry(Arc::as_ptr(&it.policy)).or_insert_with(|| {
            policies.push(&*it.policy);
            policies.len() - 1
        }),
        ipv6: it.ipv6,
    });
    let pods = pods.collect();
    File { policies, pods }
}

/// The file that belongs to a control socket.
#[must_use]
pub fn file(socket: &Path) -> PathBuf {
    socket.with_file_name("last-policies.json")
}

/// The pods' policies: of pods with rows of an earlier agent, as that one wrote them. What is not needed of
/// these any more is dropped.
fn all(pods: &[PodStatus], earlier: &mut Vec<LastPolicy>) -> Vec<LastPolicy> {
    let of_earlier: BTreeSet<String> = pods
        .iter()
        .filter(|pod| pod.is_of_earlier_agent())
        .map(PodStatus::full_name)
        .collect();
    earlier.retain(|it| of_earlier.contains(&it.pod));
    let own = pods.iter().filter_map(LastPolicy::of);
    own.chain(earlier.iter().cloned()).collect()
}

/// Keeps the file up to date, until it is to stop.
pub async fn keep(status: Arc<Status>, path: PathBuf, stop: watch::Receiver<bool>) {
    let mut written = None;
    // Of an earlier agent, if there was one.
    let reading = {
        let path = path.clone();
        runtime::blocking(move || read_all(&path))
    };
    let read = timeout(SILENT_AFTER, reading).await;
    let read = read.unwrap_or_else(|_| Err(anyhow!("its disk does not answer")));
    let mut earlier = read.unwrap_or_else(|problem| {
        let shown = path.display();
        debug!("{shown} of an earlier agent: {problem:#}");
        Vec::new()
    });
    let file = KeptFile::new(
        Arc::clone(&status),
        path,
        "without an agent `rules` and `explain` do not know the latest policies",
    );
    let mut turns = Turns::new(stop);
    while turns.next().await {
        let snapshot = status.snapshot();
        if !snapshot.ready {
            continue;
        }
        let all = all(&snapshot.pods, &mut earlier);
        if written.as_ref() == Some(&all) {
            continue;
        }
        let text = serde_json::to_vec(&contents(&all)).unwrap_or_default();
        if file.write(text).await {
            written = Some(all);
        }
    }
}

/// The policy that is in force for a pod.
///
/// # Errors
/// If the file has none, or the kernel another.
pub fn read(path: &Path, pod: &PodRef, maps: &Maps) -> Result<LastPolicy> {
    let name = pod.to_string();
    let mut all = read_all(path)?.into_iter();
    let Some(found) = all.find(|it| it.pod == name) else {
        bail!(
            "pod {pod} was not enrolled when an agent last wrote {}",
            path.display()
        );
    };
    let row = maps.pods.get(&found.cookie).context("read the pod's row")?;
    let row = row.with_context(|| format!("pod {pod} is no longer enrolled"))?;
    ensure!(
        row.policy == found.policy_id,
        "pod {pod} has policy {} in the kernel, and {} has the text of {}",
        row.policy,
        path.display(),
        found.policy_id
    );
    Ok(found)
}

fn read_all(path: &Path) -> Result<Vec<LastPolicy>> {
    let text = kept_file::read(path, MAX_SIZE)?;
    let text = text.with_context(|| format!("there is no {}", path.display()))?;
    let file: File<Policy> =
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
    let policies: Vec<Arc<Policy>> = file.policies.into_iter().map(Arc::new).collect();
    let pods = file.pods.into_iter().filter_map(|it| {
        Some(LastPolicy {
            pod: it.pod,
            cookie: it.cookie,
            policy_id: it.policy_id,
            policy: Arc::clone(policies.get(it.policy)?),
            ipv6: it.ipv6,
        })
    });
    Ok(pods.collect())
}
