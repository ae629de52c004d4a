//! Destinations that have a target of their own. Rows are added here. The agent removes those of departed pods, and retires
//! and removes those with an address that a pod no longer has, or that it has to give back to the pool.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use sidetrack_common::{
    conn::{Destination, DestinationKey, DestinationRow},
    names::{DESTINATION_CAPACITY, DESTINATION_POOL, DESTINATION_QUOTA, POOL_IN_USE},
};

use sidetrack_ebpf::own_map::ON_DEMAND;

use super::{atomic, keep_order};

/// Destinations of enrolled pods, and of departed pods as long as open connections need them.
#[btf_map]
static DESTINATIONS: HashMap<DestinationKey, DestinationRow, DESTINATION_CAPACITY, ON_DEMAND> =
    HashMap::new();

/// How many of them each pod has, and how many rows of the pool are in use ([`POOL_IN_USE`]). A pod's first destination
/// creates its row, or the agent when the pod leaves. The row goes a second after that at the earliest.
#[btf_map]
static DESTINATIONS_BY_POD: HashMap<u64, u64, 4096, ON_DEMAND> = HashMap::new();

/// The secret of this node that targets depend on. The agent writes it once, before any program is attached.
#[btf_map]
static TARGET_SEED: Array<u64, 1> = Array::new();

/// See [`Target`](sidetrack_common::target::Target).
#[inline(always)]
pub fn target_seed() -> u64 {
    TARGET_SEED.get(0).copied().unwrap_or_default()
}

/// The destination that a target names. A copy: since Linux 6.1 the memory of a row that is removed is another pod's
/// at once.
#[inline(always)]
pub fn destination(key: &DestinationKey) -> Option<Destination> {
    let row = DESTINATIONS.get_ptr(key)?;
    // SAFETY: the map's memory, which lives as long as the program. A row that takes its place is written key first.
    unsafe {
        let destination = (*row).destination;
        keep_order();
        (*row).key.is(key).then_some(destination)
    }
}

/// Whether a pod has destinations or departed a moment ago.
#[inline(always)]
pub fn is_leaving(netns: u64) -> bool {
    // SAFETY: the row is not read.
    unsafe { DESTINATIONS_BY_POD.get(&netns) }.is_some()
}

/// Names a destination by a free target. Fails if the pod has used its quota and the pool is used up, or if the target
/// is in use since a moment ago.
#[inline(always)]
pub fn add_destination(row: &DestinationRow) -> Result<(), ()> {
    let netns = row.key.netns;
    let from_pool = counted(netns) >= DESTINATION_QUOTA;
    if from_pool && counted(POOL_IN_USE) >= DESTINATION_POOL {
        return Err(());
    }
    DESTINATIONS
        .insert(&row.key, row, BPF_NOEXIST.into())
        .map_err(|_| ())?;
    count(netns);
    if from_pool {
        count(POOL_IN_USE);
    }
    Ok(())
}

#[inline(always)]
fn counted(netns: u64) -> u64 {
    // SAFETY: a number, read whole.
    unsafe { DESTINATIONS_BY_POD.get(netns) }.map_or(0, |count| *count)
}

/// Without memory for a count its limit is not enforced until there is some.
#[inline(always)]
fn count(netns: u64) {
    let _ = DESTINATIONS_BY_POD.insert(&netns, &0, BPF_NOEXIST.into());
    if let Some(count) = DESTINATIONS_BY_POD.get_ptr_mut(&netns) {
        atomic::add(count, 1);
    }
}
