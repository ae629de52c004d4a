//! The tail call from a pod's sk_lookup program to the one that decides.

use core::{arch::asm, ptr};

use aya_ebpf::{
    bindings::bpf_sk_lookup,
    btf_maps::{PerCpuArray, ProgramArray},
    macros::btf_map,
    programs::SkLookupContext,
};

/// The program that decides inbound connections. Every pod's program tail calls it, so that the kernel
/// verifies it once and an upgrade replaces it for all pods at once.
#[btf_map]
static INBOUND_PROGRAM: ProgramArray<1> = ProgramArray::new();

/// From a pod's program to the one it tail calls. Pinned, because the two may belong to different agents during an
/// upgrade.
#[btf_map]
static INBOUND_NETNS: PerCpuArray<Passed, 1> = PerCpuArray::new();

/// The pod of an inbound connection, and for which run of the programs that is.
///
/// On a kernel without PREEMPT_RT no other run begins on this CPU between the two programs of a packet: bottom halves are
/// disabled. Queries by sock_diag for one socket run in a process with all enabled: a packet may come between,
/// and another process with a query of its own.
#[repr(C)]
struct Passed {
    netns: u64,
    /// The same, mixed with the number of the run. If two runs wrote one member each, neither takes it for its own.
    netns_of_run: u64,
}

/// In the number of a run: the packet is forged.
const FORGED: u64 = 1 << 63;

/// Tail calls the program that decides inbound connections. Returns only if that fails.
#[inline(always)]
pub fn run_inbound_program(ctx: &SkLookupContext, netns: u64, is_forged: bool) {
    let Some(row) = INBOUND_NETNS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's own row.
    unsafe {
        ptr::write_volatile(&raw mut (*row).netns, netns);
        let forged = if is_forged { FORGED } else { 0 };
        let mixed = netns ^ number_of_run(ctx.lookup, row) ^ forged;
        ptr::write_volatile(&raw mut (*row).netns_of_run, mixed);
    }
    // SAFETY: nothing here needs to be dropped.
    unsafe { INBOUND_PROGRAM.tail_call(ctx, 0) };
}

/// The pod of the inbound connection, and whether the packet is forged; `None` if another run came between.
#[inline(always)]
pub fn inbound_netns(ctx: &SkLookupContext) -> Option<(u64, bool)> {
    let row = INBOUND_NETNS.get_ptr_mut(0)?;
    // SAFETY: this CPU's own row.
    let (netns, mixed) = unsafe {
        let netns = ptr::read_volatile(&raw const (*row).netns);
        (netns, ptr::read_volatile(&raw const (*row).netns_of_run))
    };
    let rest = netns ^ mixed ^ number_of_run(ctx.lookup, row);
    (rest & !FORGED == 0).then_some((netns, rest != 0))
}

/// A number that no other unfinished run on this CPU has: where its context is, which is on the stack of the kernel's
/// caller. Tail calls keep it.
#[inline(always)]
fn number_of_run(ctx: *mut bpf_sk_lookup, row: *mut Passed) -> u64 {
    /// Odd, so that different places stay different. Cookies of namespaces are small: their difference is not that of
    /// two products.
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut distance = ctx as u64;
    // SAFETY: a subtraction. For the verifier the result is a number; LLVM must not turn it into another operation.
    unsafe { asm!("{0} -= {1}", inout(reg) distance, in(reg) row) };
    distance.wrapping_mul(MIX)
}
