//! What the agent asks about the node's processes. The agent lets one pass run at a time.

use aya_ebpf::{
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use sidetrack_common::{
    names::MAX_WATCHED_NETNS,
    task::{Pass, WatchedNetns},
};

use sidetrack_ebpf::own_map::ON_DEMAND;

/// Namespaces by inode. Each agent has a map of its own.
#[btf_map]
static WATCHED_NETNS: HashMap<u64, WatchedNetns, { MAX_WATCHED_NETNS as usize }, ON_DEMAND> =
    HashMap::new();

/// The state of the pass. Each agent has a map of its own.
#[btf_map]
static TASK_PASS: Array<Pass, 1> = Array::new();

/// The row of a namespace that the agent asks about.
#[inline(always)]
pub fn watched_netns(inode: u64) -> Option<&'static mut WatchedNetns> {
    // SAFETY: the agent removes rows after the pass only, and no other program has them.
    unsafe { WATCHED_NETNS.get_ptr_mut(&inode)?.as_mut() }
}

/// The state of the pass.
#[inline(always)]
pub fn task_pass() -> Option<&'static mut Pass> {
    // SAFETY: an array's row is never freed, and one pass runs at a time.
    unsafe { TASK_PASS.get_ptr_mut(0)?.as_mut() }
}
