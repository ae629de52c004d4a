//! How many rows of lists a pod's policy, a namespace and the node may have.
//!
//! Invariant: whatever lists the authors of some pods write, a pod with short lists can be enrolled. A part of each
//! map is kept for short lists, no namespace gets more than its quota of the rest, and no policy more than its own.

use sidetrack_common::names::{OWNER_RULES_CAPACITY, PORT_RULES_CAPACITY, RANGE_RULES_CAPACITY};
use sidetrack_policy::compiled::{CompiledPolicy, ListSizes};

/// What is kept for short lists serves so many policies.
const SHORT_POLICIES: usize = 256;
/// Of a map's rows an eighth is kept for short lists.
const RESERVED_PART: usize = 8;
/// Lists of ports and of IP ranges with more rows than this are long.
pub const SHORT: usize = PORT_RULES_CAPACITY / RESERVED_PART / SHORT_POLICIES;
/// A policy may have an eighth of a map's rows.
const POLICY: usize = 8;
/// The policies of a namespace may have three eighths of a map's rows.
const NAMESPACE: (usize, usize) = (3, 8);

/// The maps of lists: how many rows of each a policy has, what a row holds, and the map's rows.
type Kind = (fn(&ListSizes) -> usize, &'static str, usize);
const KINDS: [Kind; 3] = [
    (|it| it.ports, "ports", PORT_RULES_CAPACITY),
    (|it| it.ranges, "IP ranges", RANGE_RULES_CAPACITY),
    (|it| it.owners, "users and groups", OWNER_RULES_CAPACITY),
];

/// A policy whose lists exceed a quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lists of its policy have {0}")]
pub struct Excess(String);

/// Whether a new policy has room beside what the other policies of its namespace and of the node have.
///
/// # Errors
/// If it exceeds a quota.
pub(super) fn check(
    policy: &CompiledPolicy,
    namespace: &ListSizes,
    node: &ListSizes,
) -> Result<(), Excess> {
    let sizes = policy.list_sizes();
    for (rows_of, entries, capacity) in KINDS {
        let rows = rows_of(&sizes);
        // So many come from what is kept for short lists.
        if rows <= capacity / RESERVED_PART / SHORT_POLICIES {
            continue;
        }
        let excess = |bound: String, cure: &str| {
            let text = format!("{rows} {entries}; {bound}: shorten the lists{cure}");
            Err(Excess(text))
        };
        let most = capacity / POLICY;
        if rows > most {
            return excess(format!("a policy may have {most}"), "");
        }
        let (part, whole) = NAMESPACE;
        let most = capacity * part / whole;
        let used = rows_of(namespace);
        if used + rows > most {
            let bound = format!(
                "the policies of a namespace may have {most} on a node, and others of this namespace have {used}"
            );
            return excess(bound, ", or let pods of the namespace have the same lists");
        }
        let most = capacity - capacity / RESERVED_PART;
        let used = rows_of(node);
        if used + rows > most {
            let bound = format!("the policies of a node may have {most}, and others have {used}");
            return excess(bound, ", or move pods to other nodes");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
