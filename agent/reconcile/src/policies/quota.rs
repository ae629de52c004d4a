//! How many rows of lists a pod's policy, a namespace and the node may have.
//!
//! Invariant: whatever lists the authors of some pods write, a pod with short lists can be enrolled. A part of each
//! map is kept for short lists, no namespace gets more than its quota of the rest, and no policy more than its own.

use std::fmt;

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

/// The maps of lists.
const KINDS: [Kind; 3] = [
    Kind {
        rows: |sizes| sizes.ports,
        entries: "ports",
        capacity: PORT_RULES_CAPACITY,
    },
    Kind {
        rows: |sizes| sizes.ranges,
        entries: "IP ranges",
        capacity: RANGE_RULES_CAPACITY,
    },
    Kind {
        rows: |sizes| sizes.owners,
        entries: "users and groups",
        capacity: OWNER_RULES_CAPACITY,
    },
];

struct Kind {
    rows: fn(&ListSizes) -> usize,
    /// What a row holds.
    entries: &'static str,
    /// Rows of the map.
    capacity: usize,
}

impl Kind {
    /// So many rows of a policy come from what is kept for short lists.
    const fn short(&self) -> usize {
        self.capacity / RESERVED_PART / SHORT_POLICIES
    }
}

/// A policy whose lists exceed a quota.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lists of its policy have {rows} {entries}; {bound}: shorten the lists{cure}")]
pub struct Excess {
    rows: usize,
    entries: &'static str,
    bound: Bound,
    cure: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Bound {
    /// What one policy may have.
    Policy(usize),
    /// What a namespace may have, and what its other policies have.
    Namespace(usize, usize),
    /// What all long lists of the node may have, and what those there are have.
    Node(usize, usize),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(most) => write!(f, "a policy may have {most}"),
            Self::Namespace(most, used) => write!(
                f,
                "the policies of a namespace may have {most} on a node, and others of this namespace have {used}"
            ),
            Self::Node(most, used) => write!(
                f,
                "the policies of a node may have {most}, and others have {used}"
            ),
        }
    }
}

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
    for kind in &KINDS {
        let rows = (kind.rows)(&sizes);
        if rows <= kind.short() {
            continue;
        }
        let excess = |bound, cure| {
            Err(Excess {
                rows,
                entries: kind.entries,
                bound,
                cure,
            })
        };
        let most = kind.capacity / POLICY;
        if rows > most {
            return excess(Bound::Policy(most), "");
        }
        let (part, whole) = NAMESPACE;
        let most = kind.capacity * part / whole;
        let used = (kind.rows)(namespace);
        if used + rows > most {
            let cure = ", or let pods of the namespace have the same lists";
            return excess(Bound::Namespace(most, used), cure);
        }
        let most = kind.capacity - kind.capacity / RESERVED_PART;
        let used = (kind.rows)(node);
        if used + rows > most {
            return excess(Bound::Node(most, used), ", or move pods to other nodes");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
