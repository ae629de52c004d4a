//! Connection counters.

use core::{arch::asm, ptr};

use aya_ebpf::{bindings::BPF_NOEXIST, btf_maps::HashMap, macros::btf_map};
use sidetrack_common::{
    addr::Family,
    count::{CountKey, RuleCounts},
    names::COUNTER_QUOTA,
    rule::Rule,
};

use sidetrack_ebpf::own_map::ON_DEMAND;

use super::{atomic, pods::Enrolled};

/// Connections by pod and deciding rule. One number each: one for each CPU would take a megabyte of memory for a pod's
/// quota on a node with many.
#[btf_map]
static COUNT_BY_RULE: HashMap<CountKey, u64, 65_536, ON_DEMAND> = HashMap::new();

/// How many of its rows each pod has. The agent corrects it when it removes some. No row means 0.
#[btf_map]
static COUNTERS_BY_POD: HashMap<u64, u64, 4096, ON_DEMAND> = HashMap::new();

/// Connections for which there is no such row, by rule alone: a row for every pod, whatever the others have.
#[btf_map]
static OVERFLOW_BY_POD: HashMap<u64, RuleCounts, 4096, ON_DEMAND> = HashMap::new();

/// A row for [`OVERFLOW_BY_POD`].
static NONE: RuleCounts = RuleCounts::NONE;

/// Counts a connection under the rule of the policy that decided it. Without memory a count is lost, never traffic.
#[inline(always)]
pub fn count(netns: u64, pod: Enrolled, family: Family, rule: Rule, index: u32) {
    let key = CountKey {
        netns,
        policy: pod.policy,
        family: family as u32,
        rule,
        index,
    };
    if add(&key) || has_quota(netns) && add_row(&key) {
        return;
    }
    overflow(netns, family, rule);
}

/// Adds to a counter that is there.
#[inline(always)]
fn add(key: &CountKey) -> bool {
    let Some(count) = COUNT_BY_RULE.get_ptr_mut(key) else {
        return false;
    };
    atomic::add(count, 1);
    true
}

/// Whether a pod may have another row.
#[inline(always)]
fn has_quota(netns: u64) -> bool {
    let count = COUNTERS_BY_POD.get_ptr(&netns);
    // SAFETY: a number, read whole.
    count.is_none_or(|count| unsafe { ptr::read_volatile(count) } < u64::from(COUNTER_QUOTA))
}

/// Begins a counter.
#[inline(always)]
fn add_row(key: &CountKey) -> bool {
    if COUNT_BY_RULE.insert(key, &1, BPF_NOEXIST.into()).is_err() {
        // Another CPU has begun it meanwhile, or the map is full.
        return add(key);
    }
    let _ = COUNTERS_BY_POD.insert(&key.netns, &0, BPF_NOEXIST.into());
    if let Some(count) = COUNTERS_BY_POD.get_ptr_mut(&key.netns) {
        atomic::add(count, 1);
    }
    true
}

#[inline(always)]
fn overflow(netns: u64, family: Family, rule: Rule) {
    let row = OVERFLOW_BY_POD.get_ptr_mut(&netns).or_else(|| {
        // Another CPU may have created the row first.
        let _ = OVERFLOW_BY_POD.insert(&netns, &NONE, BPF_NOEXIST.into());
        OVERFLOW_BY_POD.get_ptr_mut(&netns)
    });
    let mut index = RuleCounts::index(family, rule);
    // SAFETY: a number stays what it is. LLVM sees the numbers of rules and would omit the check that the verifier
    // needs.
    unsafe { asm!("{0} += 0", inout(reg) index) };
    if let Some(row) = row
        && index < NONE.counts.len()
    {
        // SAFETY: a number of the row's; the map's memory lives as long as the program.
        atomic::add(
            unsafe { (&raw mut (*row).counts).cast::<u64>().add(index) },
            1,
        );
    }
}
