//! The hooks of a connection, one file per kind of hook, and the iterators over sockets and processes.

#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        clippy::needless_borrows_for_generic_args,
        reason = "a key or value that is moved into a call takes room on a stack of 512 bytes"
    )
)]

#[cfg(target_arch = "bpf")]
mod adopt;
#[cfg(target_arch = "bpf")]
mod charges;
#[cfg(target_arch = "bpf")]
mod connect;
#[cfg(target_arch = "bpf")]
mod getsockopt;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod names;
#[cfg(target_arch = "bpf")]
mod queues;
#[cfg(target_arch = "bpf")]
mod setsockopt;
#[cfg(target_arch = "bpf")]
mod sk_lookup;
#[cfg(target_arch = "bpf")]
mod sock_release;
#[cfg(target_arch = "bpf")]
mod sockops;
#[cfg(target_arch = "bpf")]
mod tables;
#[cfg(target_arch = "bpf")]
mod tasks;

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
