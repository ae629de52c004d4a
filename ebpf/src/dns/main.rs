//! The programs of DNS capture over UDP. Loaded when the first pod asks for it, and attached to the pods that do.

#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        clippy::needless_borrows_for_generic_args,
        reason = "a key or value that is moved into a call takes room on a stack of 512 bytes"
    )
)]

#[cfg(target_arch = "bpf")]
mod answers;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod queries;
#[cfg(target_arch = "bpf")]
#[path = "../core/tables.rs"]
#[expect(
    dead_code,
    reason = "the module is the core's, which has packets as well"
)]
mod tables;

#[cfg(target_arch = "bpf")]
pub use sidetrack_ebpf::LICENSE;

/// Cgroup programs: allow the call.
#[cfg(target_arch = "bpf")]
const ALLOW: i32 = 1;
/// Cgroup programs: fail the call.
#[cfg(target_arch = "bpf")]
const DENY: i32 = 0;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
