//! Which rows a pod's interfaces get.

use std::collections::{BTreeMap, HashMap};

use sidetrack_common::pod::IfaceRow;
use sidetrack_policy::Policy;

use crate::netns::routes::Snapshot;

/// Interfaces of one pod that rules may name at most: with a pattern a pod may have any number of them.
pub(super) const MAX_IFACES: usize = 1024;

/// The rows of the interfaces that a policy names, by index, and how many more it names than the pod may have now: the
/// oldest have rows.
pub(super) fn of_policy(
    snapshot: &Snapshot,
    policy: &Policy,
    most: usize,
) -> (HashMap<u32, IfaceRow>, usize) {
    let named: BTreeMap<u32, IfaceRow> = snapshot
        .links
        .iter()
        .map(|(index, name)| (*index, policy.iface(name)))
        .filter(|(_, row)| *row != IfaceRow::PLAIN)
        .collect();
    let omitted = named.len().saturating_sub(most);
    (named.into_iter().take(most).collect(), omitted)
}

/// What people should know about interfaces without a row.
pub(super) fn note(omitted: usize, most: usize) -> Option<String> {
    (omitted > 0).then(|| {
        format!(
            "its policy names more than {most} of its interfaces: {omitted} of them count as not named"
        )
    })
}

#[cfg(test)]
mod tests;
