//! Who makes an outbound connection.

use serde::Serialize;
use sidetrack_common::decide;
use sidetrack_policy::Policy;

/// The first number that is tried for an application's user and group.
const APP: u32 = 1000;

/// User and group of a socket's creator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
    /// Whether one of them was not given.
    assumed: bool,
}

impl Owner {
    /// What is not given is assumed: an application's, or the proxy's group for the proxy's user.
    pub(super) fn new(policy: &Policy, uid: Option<u32>, gid: Option<u32>) -> Self {
        let is_proxy = |uid| policy.proxy_uids.contains(&uid);
        let proxy_gid = policy.proxy_gids.first().copied();
        let gid_of_app = || app_group(policy);
        Self {
            uid: uid.unwrap_or_else(|| other_than(&policy.proxy_uids)),
            gid: gid.unwrap_or_else(|| match uid {
                Some(uid) if is_proxy(uid) => proxy_gid.unwrap_or_else(gid_of_app),
                _ => gid_of_app(),
            }),
            assumed: uid.is_none() || gid.is_none(),
        }
    }

    /// For the decision.
    pub(super) fn creator(self) -> decide::Owner {
        decide::Owner {
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// A line of text, if something was assumed.
    pub(super) fn remark(self, policy: &Policy) -> Option<String> {
        let known = policy.proxy_uids.contains(&self.uid) || policy.proxy_gids.contains(&self.gid);
        let who = if known {
            "the proxy"
        } else {
            "an application, neither the proxy nor of an excluded group"
        };
        let numbers = self.numbers();
        self.assumed
            .then(|| format!("{who} ({numbers} assumed; --uid and --gid set others)"))
    }

    /// Both as text.
    pub(super) fn numbers(self) -> String {
        format!("uid {}, gid {}", self.uid, self.gid)
    }
}

/// A group whose connections the policy captures.
fn app_group(policy: &Policy) -> u32 {
    let without = [policy.proxy_gids.as_slice(), &policy.excluded_groups].concat();
    let included = policy.included_groups.iter().flatten();
    let usable = included.copied().find(|gid| !without.contains(gid));
    usable.unwrap_or_else(|| other_than(&without))
}

/// The first number that is not in a list.
fn other_than(used: &[u32]) -> u32 {
    (APP..=u32::MAX)
        .find(|id| !used.contains(id))
        .unwrap_or(APP)
}

#[cfg(test)]
mod tests;
