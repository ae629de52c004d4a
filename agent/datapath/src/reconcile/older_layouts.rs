//! Older layouts of maps: their hooks are removed when this agent has all pods, the rest when no socket
//! can be left that they redirected.

use std::collections::BTreeSet;

use sidetrack_common::ids::{NetnsCookie, NetnsInode};
use sidetrack_reconcile::{Core, PodState, Processes as _};
use tracing::{info, warn};

use crate::{kernel::layouts::OldLayout, netns::processes::Processes, node::KernelNode};

/// Whether an older layout still intercepts pods.
enum StillUsed {
    /// No: its hooks can be removed.
    No,
    /// Yes, for now.
    Yes,
    /// Yes, and a person has to act.
    Problem(String),
}

/// Answers what is wrong.
pub(super) fn retire(core: &mut Core<KernelNode>) -> Vec<String> {
    // Before the first complete listing it is not known which pods are wanted.
    if core.node.datapath.earlier.is_empty() || core.running_counts().is_none() {
        return Vec::new();
    }
    let mut problems = Vec::new();
    let own: BTreeSet<NetnsCookie> = core
        .enrollments()
        .map(|(_, enrollment)| enrollment.cookie)
        .collect();
    for layout in std::mem::take(&mut core.node.datapath.earlier) {
        let is_own = |cookie: &u64| own.contains(&NetnsCookie::new(*cookie));
        if layout.redirects() {
            match still_used(core, &layout, &own) {
                StillUsed::Yes => {}
                StillUsed::Problem(problem) => problems.push(problem),
                StillUsed::No => problems.extend(stop_redirecting(&layout)),
            }
        } else if !layout.pod_cookies().iter().any(is_own) {
            match remove(&layout) {
                Ok(()) => continue,
                Err(problem) => problems.push(problem),
            }
        }
        core.node.datapath.earlier.push(layout);
    }
    problems
}

/// Whether pods would not be intercepted without what an older layout has attached.
fn still_used(
    core: &Core<KernelNode>,
    layout: &OldLayout,
    own: &BTreeSet<NetnsCookie>,
) -> StillUsed {
    let mut left = layout.live_pods();
    left.retain(|(cookie, _)| !own.contains(&NetnsCookie::new(*cookie)));
    if left.is_empty() {
        return StillUsed::No;
    }
    let rejected: Vec<String> = core
        .pods()
        .filter(|(_, record)| record.state() == PodState::Rejected)
        .map(|(name, _)| name.to_string())
        .collect();
    if !rejected.is_empty() {
        return StillUsed::Problem(format!(
            "the hooks of layout {} stay, since without them pods that cannot be enrolled may not be intercepted: fix {}, or delete them",
            layout.version,
            rejected.join(", ")
        ));
    }
    if core.running_counts() != Some(true) {
        return StillUsed::No;
    }
    // Pods that are deleted and still run stay intercepted.
    let inodes = left.iter().map(|(_, inode)| *inode).collect();
    let processes = core.node.processes_in(inodes, None);
    let skipped = skipped_inodes(core, &processes);
    let runs = |(_, inode): &(u64, u64)| {
        processes.any_in(NetnsInode::new(*inode)) && !skipped.contains(inode)
    };
    if left.iter().any(runs) {
        StillUsed::Yes
    } else {
        StillUsed::No
    }
}

/// Inodes of the namespaces of pods that are not to be enrolled.
fn skipped_inodes(core: &Core<KernelNode>, processes: &Processes) -> BTreeSet<u64> {
    core.pods()
        .filter(|(_, record)| record.state() == PodState::Skipped)
        .filter_map(|(_, record)| {
            let sought = record.sought(record.uid.as_deref()?, None);
            processes.netns_of_pod(sought).ok()?.inode
        })
        .map(NetnsInode::get)
        .collect()
}

/// Removes the hooks of a layout; a problem if they cannot be.
fn stop_redirecting(layout: &OldLayout) -> Option<String> {
    let version = layout.version;
    match layout.stop_redirecting() {
        Ok(()) => {
            info!(
                version,
                "all pods are enrolled: removed the hooks of the earlier layout"
            );
            None
        }
        Err(problem) => Some(format!("remove the hooks of layout {version}: {problem:#}")),
    }
}

fn remove(layout: &OldLayout) -> Result<(), String> {
    let version = layout.version;
    let removed = layout
        .remove()
        .map_err(|problem| format!("remove layout {version}: {problem:#}"))?;
    info!(
        version,
        links = removed.links.len(),
        maps = removed.maps.len(),
        "the last pod of the earlier layout is gone: removed it"
    );
    for path in removed.left {
        warn!("left {}: it is not sidetrack's", path.display());
    }
    Ok(())
}
