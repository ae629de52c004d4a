//! The program for packets that only pass through a pod. Loaded when the first pod needs it.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod ingress;
#[cfg(target_arch = "bpf")]
pub use sidetrack_ebpf::LICENSE;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
