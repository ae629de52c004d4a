//! Kernel structs of known type: the verifier tracks what a pointer leads to, and checks each load. A load
//! from a bad address gives 0. Offsets come from the kernel's BTF.

use core::ptr;

use aya_ebpf::{Global, bindings::bpf_sock, helpers::generated::bpf_skc_to_tcp_sock};

/// A pointer to a kernel struct.
pub type Typed = *const u8;

/// The kernel's `struct tcp_sock` of a socket.
#[inline(always)]
pub fn tcp_sock(sk: *mut bpf_sock) -> Option<Typed> {
    // SAFETY: a socket from the context; the helper returns null for one that is not TCP.
    let tcp = unsafe { bpf_skc_to_tcp_sock(sk.cast()) };
    (!tcp.is_null()).then_some(tcp.cast())
}

/// The pointer at an offset, null if the struct is not there.
#[inline(always)]
pub fn follow(base: Typed, offset: &Global<u32>) -> Typed {
    load(base, offset)
}

/// The value at an offset, 0 if the struct is not there.
#[inline(always)]
pub fn load<T: Copy>(base: Typed, offset: &Global<u32>) -> T {
    // SAFETY: the verifier has checked that the struct has such a field; the kernel handles the fault of a
    // pointer that leads nowhere.
    unsafe { ptr::read_volatile(base.wrapping_add(offset.load() as usize).cast()) }
}
