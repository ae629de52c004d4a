//! Enrolled pods as the kernel's maps have them: also those of an earlier agent that this one does not know yet.

use std::{
    collections::{BTreeSet, HashSet},
    io,
};

use sidetrack_common::{addr::Family, pod::Pod};
use sidetrack_datapath::{kernel::maps::Maps, rows::names};

use crate::api::{NetnsStatus, PodState, PodStatus};

/// Where such a pod is from.
pub const ORIGIN: &str = "pinned map";

/// Every enrolled pod, without what is counted.
///
/// # Errors
/// If the map cannot be read.
pub fn all(maps: &Maps) -> io::Result<Vec<PodStatus>> {
    let rows = maps.pods.rows()?.into_iter();
    Ok(rows.map(|(cookie, row)| of_row(cookie, &row)).collect())
}

/// Adds the enrolled pods that are not among these, by namespace and by name.
///
/// # Errors
/// If the map cannot be read.
pub fn add_others(pods: &mut Vec<PodStatus>, maps: &Maps) -> io::Result<()> {
    let cookie = |pod: &PodStatus| pod.netns.as_ref().map(|netns| netns.cookie);
    let known: HashSet<u64> = pods.iter().filter_map(cookie).collect();
    let mut others = maps.pods.rows()?;
    others.retain(|(cookie, _)| !known.contains(cookie));
    if others.is_empty() {
        return Ok(());
    }
    let listed: BTreeSet<String> = pods.iter().map(PodStatus::full_name).collect();
    let others = others.iter().map(|(cookie, row)| of_row(*cookie, row));
    pods.extend(others.filter(|pod| !listed.contains(&pod.full_name())));
    pods.sort_by_key(PodStatus::full_name);
    Ok(())
}

fn of_row(cookie: u64, row: &Pod) -> PodStatus {
    let (namespace, name, uid) = names(row);
    PodStatus {
        namespace,
        name,
        uid,
        origin: ORIGIN.to_owned(),
        state: PodState::Enrolled,
        netns: Some(NetnsStatus::by_inode(row.netns_inode, cookie)),
        policy_id: Some(row.policy),
        ipv6: row.captures(Family::V6),
        ..PodStatus::default()
    }
}
