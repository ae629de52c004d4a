//! The programs on pods' interfaces: for packets that only pass through a pod, for connections of the node itself, and for
//! DNS queries on lo.
//! Loaded when the first pod needs them.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod dns;
#[cfg(target_arch = "bpf")]
mod ingress;
#[cfg(target_arch = "bpf")]
mod node_calls;
#[cfg(target_arch = "bpf")]
pub use sidetrack_ebpf::LICENSE;

#[cfg(not(target_arch = "bpf"))]
fn main() {}
