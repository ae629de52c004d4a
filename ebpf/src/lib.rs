//! What the kernel programs have in common. There are four objects of them:
//!
//! - `core/`: a file for each step of a connection. `connect` decides and rewrites to a target that names the dialed
//!   address, `getsockopt` and `names` return that address, `sk_lookup` assigns inbound connections to the sidecar's
//!   listener. Where a connection has no such target, `sockops` carries the dialed address to the sidecar's socket.
//! - `forward/`: packets that only pass through a pod. Loaded when the first pod needs it.
//! - `accelerate/`: for pods that ask for it. Loaded when the first one does.
//! - `dns/`: DNS capture over UDP. Loaded when the first pod asks for it.
//!
//! Unsafe code lives in `ctx/` (views of the kernel's context structs and helper calls) and where maps are accessed
//! (`core/maps/`, `accelerate/flows.rs`, `dns/maps.rs`, `own_map.rs`, `probe.rs`); the entry points only wrap pointers.

#![cfg_attr(target_arch = "bpf", no_std, feature(asm_experimental_arch))]
#![cfg(target_arch = "bpf")]
#![expect(
    clippy::new_without_default,
    clippy::result_unit_err,
    reason = "the only users are the objects in this package"
)]

pub mod ctx;
pub mod own_map;
pub mod probe;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier rejects a program that can get here.
    loop {}
}

/// Of every object. The kernel allows bpf_probe_read_kernel and other helpers in GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
pub static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
