//! The kernel programs. `hook/` has a file for each step of a connection: `connect` decides and
//! rewrites, `sockops` carries the dialed address to the sidecar's socket, `getsockopt` and `names`
//! return it, `sk_lookup` assigns inbound connections to the sidecar's listener. `accelerate` is for pods that
//! ask for it.
//!
//! Unsafe code lives in `ctx/` (views of the kernel's context structs and helper calls) and
//! `maps/` (map access); the entry points here only wrap pointers.

#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]

#[cfg(target_arch = "bpf")]
mod ctx;
#[cfg(target_arch = "bpf")]
mod hook;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod tables;

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier rejects a program that can get here.
    loop {}
}

/// The kernel allows bpf_probe_read_kernel and other helpers in GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(target_arch = "bpf"))]
fn main() {}
