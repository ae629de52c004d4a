//! The tail call from a pod's sk_lookup program to the one that decides.

use core::ptr;

use aya_ebpf::{
    btf_maps::{PerCpuArray, ProgramArray},
    macros::btf_map,
    programs::SkLookupContext,
};

/// The program that decides inbound connections. Every pod's program tail calls it, so that the kernel
/// verifies it once and an upgrade replaces it for all pods at once.
#[btf_map]
static ARRIVAL_PROGRAM: ProgramArray<1> = ProgramArray::new();

/// The pod of the inbound connection this CPU handles, from the pod's program to the one it tail
/// calls. Pinned, because the two may belong to different agents during an upgrade.
#[btf_map]
static ARRIVAL_NETNS: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Tail calls the program that decides inbound connections. Returns only if that fails.
#[inline(always)]
pub fn run_inbound_program(ctx: &SkLookupContext, netns: u64) {
    let Some(slot) = ARRIVAL_NETNS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's own value.
    unsafe { ptr::write_volatile(slot, netns) };
    // SAFETY: nothing here needs to be dropped.
    unsafe { ARRIVAL_PROGRAM.tail_call(ctx, 0) };
}

/// Takes the pod of the inbound connection; 0, which no pod has, if there is none.
///
/// Lookups for packets run with bottom halves disabled, so none begins on this CPU between the two programs. A
/// sock_diag query for one socket runs with them enabled: a packet of another pod may come between, and that pod's
/// listener is not for the query. Nothing is left behind for it, because this takes the value.
#[inline(always)]
pub fn take_inbound_netns() -> u64 {
    let Some(slot) = ARRIVAL_NETNS.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's own value.
    unsafe {
        let netns = ptr::read_volatile(slot);
        ptr::write_volatile(slot, 0);
        netns
    }
}
