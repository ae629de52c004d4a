//! The kernel programs. `hook/` reads top to bottom as the story of a connection: `connect` decides
//! and rewrites, `sockops` carries the dialed address to the sidecar's socket, `getsockopt` and
//! `getpeername` answer with it, `sk_lookup` hands arrivals to the sidecar.
//!
//! Unsafe code lives in `ctx/` (views of the kernel's context structs and helper calls) and
//! `maps.rs` (map access); the entry points here only wrap pointers.

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
    // The verifier has shown that nothing reaches this.
    loop {}
}

/// bpf_probe_read_kernel and friends are offered to GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(target_arch = "bpf"))]
fn main() {}
