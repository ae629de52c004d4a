//! Which rows a pod's interfaces get.

use std::collections::{BTreeMap, HashMap};

use sidetrack_common::pod::IfaceRow;
use sidetrack_policy::Policy;

use crate::netns::routes::Snapshot;

/// Interfaces of one pod that rules may name; IFACE_BY_POD holds 65,536 rows for all pods together, and with a
/// pattern a pod may have any number of them.
const MAX_IFACES: usize = 1024;

/// The rows of the interfaces that a policy names, by index, and how many more it names than a pod may have: the
/// oldest have rows.
pub(super) fn of_policy(snapshot: &Snapshot, policy: &Policy) -> (HashMap<u32, IfaceRow>, usize) {
    let named: BTreeMap<u32, IfaceRow> = snapshot
        .links
        .iter()
        .map(|(index, name)| (*index, policy.iface(name)))
        .filter(|(_, row)| *row != IfaceRow::PLAIN)
        .collect();
    let omitted = named.len().saturating_sub(MAX_IFACES);
    (named.into_iter().take(MAX_IFACES).collect(), omitted)
}

/// What people should know about interfaces without a row.
pub(super) fn note(omitted: usize) -> Option<String> {
    (omitted > 0).then(|| {
        format!(
            "its policy names more than {MAX_IFACES} of its interfaces: {omitted} of them count as not named"
        )
    })
}

#[cfg(test)]
mod tests;
