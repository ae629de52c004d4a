//! Ids of pods with a user namespace of their own (`hostUsers: false`), in the node's numbering.
//!
//! Netfilter reads the ids of an owner rule in the user namespace that owns the network namespace
//! (`owner_mt` in net/netfilter/xt_owner.c), and so does this.

use std::fmt;

/// An id that a pod's user namespace does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} {id} does not exist in the pod's user namespace; the sidecar must run as one that does"
)]
pub struct UnknownId {
    kind: &'static str,
    id: u32,
}

/// Ids of a user namespace in the node's numbering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMaps {
    uids: Vec<Extent>,
    gids: Vec<Extent>,
}

/// A line of `/proc/PID/uid_map` (user_namespaces(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    inside: u32,
    outside: u32,
    count: u32,
}

impl IdMaps {
    /// The maps in the text of `/proc/PID/uid_map` and `/proc/PID/gid_map`.
    #[must_use]
    pub fn parse(uid_map: &str, gid_map: &str) -> Self {
        Self {
            uids: extents(uid_map),
            gids: extents(gid_map),
        }
    }

    /// The node's own numbering.
    #[must_use]
    pub fn of_node() -> Self {
        let all = vec![Extent {
            inside: 0,
            outside: 0,
            count: u32::MAX,
        }];
        Self {
            uids: all.clone(),
            gids: all,
        }
    }

    /// A user's number on the node.
    ///
    /// # Errors
    /// If there is no such user.
    pub fn uid(&self, uid: u32) -> Result<u32, UnknownId> {
        let kind = "user";
        outside(&self.uids, uid).ok_or(UnknownId { kind, id: uid })
    }

    /// A group's number on the node.
    ///
    /// # Errors
    /// If there is no such group.
    pub fn gid(&self, gid: u32) -> Result<u32, UnknownId> {
        let kind = "group";
        outside(&self.gids, gid).ok_or(UnknownId { kind, id: gid })
    }
}

impl fmt::Display for IdMaps {
    /// The first user's number, as `0 is 100000`; nothing for the node's own numbering.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uids.first() {
            Some(first) if first.inside != first.outside => {
                write!(f, "{} is {}", first.inside, first.outside)
            }
            _ => Ok(()),
        }
    }
}

fn outside(extents: &[Extent], id: u32) -> Option<u32> {
    extents.iter().find_map(|extent| {
        let offset = id.checked_sub(extent.inside)?;
        (offset < extent.count).then(|| extent.outside.checked_add(offset))?
    })
}

fn extents(text: &str) -> Vec<Extent> {
    text.lines()
        .filter_map(|line| {
            let mut numbers = line.split_whitespace().map(str::parse);
            Some(Extent {
                inside: numbers.next()?.ok()?,
                outside: numbers.next()?.ok()?,
                count: numbers.next()?.ok()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
