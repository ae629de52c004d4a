//! The row by which the program of forwarded packets asks for a decision.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use sidetrack_common::forward::Probe;

/// A [`Probe`]. Pinned, because the two programs may belong to different agents during an upgrade.
#[btf_map]
static FORWARD_PROBE: PerCpuArray<u32, 1> = PerCpuArray::new();

/// Sets this CPU's question or answer.
#[inline(always)]
pub fn set_probe(probe: Probe) {
    if let Some(row) = FORWARD_PROBE.get_ptr_mut(0) {
        // SAFETY: this CPU's own value. Packets are received and their sockets looked up with bottom halves
        // disabled, so no other packet comes between.
        unsafe { *row = probe as u32 };
    }
}

/// This CPU's question or answer.
#[inline(always)]
pub fn probe() -> u32 {
    FORWARD_PROBE.get(0).copied().unwrap_or_default()
}
