//! The programs of acceleration. Loaded when the first pod asks for it.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod flows;
#[cfg(target_arch = "bpf")]
mod messages;
#[cfg(target_arch = "bpf")]
pub use sidetrack_ebpf::LICENSE;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
