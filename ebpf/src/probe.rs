//! The row by which the program of forwarded packets asks for a decision.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use sidetrack_common::forward::{PORT_SHIFT, Probe};

/// A [`Probe`]. Pinned, because the two programs may belong to different agents during an upgrade.
#[btf_map]
static FORWARD_PROBE: PerCpuArray<u32, 1> = PerCpuArray::new();

/// Sets this CPU's question or answer.
#[inline(always)]
pub fn set_probe(probe: Probe) {
    set_row(probe as u32);
}

/// Answers that the sidecar's listener is to be looked up at a port.
#[inline(always)]
pub fn answer_at_port(port: u16) {
    set_row(Probe::AtPort as u32 | u32::from(port) << PORT_SHIFT);
}

#[inline(always)]
fn set_row(value: u32) {
    if let Some(row) = FORWARD_PROBE.get_ptr_mut(0) {
        // SAFETY: this CPU's own value. From the question to the answer bottom halves are disabled, so that on a kernel
        // without PREEMPT_RT nothing else runs on this CPU: no other packet, and no process. A query by sock_diag that is
        // interrupted here finds no question before or after.
        unsafe { *row = value };
    }
}

/// This CPU's question or answer.
#[inline(always)]
pub fn probe() -> u32 {
    FORWARD_PROBE.get(0).copied().unwrap_or_default()
}
