//! Counters of connections.

use crate::{addr::Family, btf::RuleField, rule::Rule};

/// Key of a connection counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct CountKey {
    /// Network namespace cookie.
    pub netns: u64,
    /// The policy that decided: positions in its lists mean nothing in another's. [`EARLIER_POLICIES`] for what the
    /// agent has added up.
    pub policy: u32,
    /// A [`crate::addr::Family`]: each has rules of its own.
    pub family: u32,
    /// A [`crate::rule::Rule`].
    pub rule: RuleField,
    /// Position in the rule's list; 0 for rules without one.
    pub index: u32,
}

/// [`CountKey::policy`] of the connections that were decided by policies a pod has had before. No policy has this id.
pub const EARLIER_POLICIES: u32 = 0;
/// [`CountKey::policy`] of what userspace reads from [`RuleCounts`]: it may be of any policy of the pod and any position.
pub const ANY_POLICY: u32 = u32::MAX;

/// Rules have smaller numbers.
const RULE_NUMBERS: usize = 80;

/// Connections of a pod that found no room for a counter of their own, by family and rule alone.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RuleCounts {
    /// See [`RuleCounts::index`].
    pub counts: [u64; 2 * RULE_NUMBERS],
}

impl RuleCounts {
    /// Nothing was counted.
    pub const NONE: Self = Self {
        counts: [0; 2 * RULE_NUMBERS],
    };

    /// Where a rule's connections are counted.
    #[inline(always)]
    #[must_use]
    pub const fn index(family: Family, rule: Rule) -> usize {
        let first = match family {
            Family::V4 => 0,
            Family::V6 => RULE_NUMBERS,
        };
        first + rule as usize
    }
}

const _: () = {
    let mut at = 0;
    while at < Rule::ALL.len() {
        assert!((Rule::ALL[at] as usize) < RULE_NUMBERS);
        at += 1;
    }
};

const _: () = assert!(size_of::<CountKey>() == 24);

#[cfg(test)]
mod tests;
