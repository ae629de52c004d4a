//! Connection counters.

use aya_ebpf::{bindings::BPF_NOEXIST, btf_maps::PerCpuHashMap, macros::btf_map};
use sidetrack_common::{addr::Family, conn::CountKey, rule::Rule};

use super::{own_map::ON_DEMAND, pods::Enrolled};

/// Connections by pod and deciding rule.
#[btf_map]
static COUNT_BY_RULE: PerCpuHashMap<CountKey, u64, 65_536, ON_DEMAND> = PerCpuHashMap::new();

/// Counts a connection under the rule of the policy that decided it. A full table loses counts, never traffic.
#[inline(always)]
pub fn count(netns: u64, pod: Enrolled, family: Family, rule: Rule, index: u32) {
    let key = CountKey {
        netns,
        policy: pod.policy,
        family: family as u32,
        rule,
        index,
    };
    if let Some(count) = COUNT_BY_RULE.get_ptr_mut(&key) {
        // SAFETY: this CPU's own value; programs of one CPU do not preempt each other here, and a
        // lost increment would only be a lost count.
        unsafe { *count += 1 };
        return;
    }
    let _ = COUNT_BY_RULE.insert(&key, &1, BPF_NOEXIST as u64);
}
