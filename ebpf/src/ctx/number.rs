//! The kernel's memory by address, where there is no typed pointer.

use core::ffi::c_void;

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};

/// Whether programs may read the kernel's memory by address: not in `lockdown=confidentiality`. The verifier does not
/// look at what is never reached.
#[unsafe(no_mangle)]
static CAN_READ_KERNEL: Global<u8> = Global::new(0);

/// Whether [`load`] answers anything.
#[inline(always)]
pub fn can_load() -> bool {
    CAN_READ_KERNEL.load() != 0
}

/// The address that a pointer from a context leads to. The verifier tracks the type behind such a pointer, and allows
/// no other offset than those of its fields. What a helper has copied is a number.
#[inline(always)]
pub fn of_pointer(pointer: *mut c_void) -> Option<usize> {
    load(core::ptr::from_ref(&pointer) as usize)
}

/// The value at an address; `None` where that cannot be read.
#[inline(always)]
pub fn load<T>(at: usize) -> Option<T> {
    if !can_load() {
        return None;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(at as *const T) }.ok()
}

/// The same at the offset of a member.
#[inline(always)]
pub fn load_at<T>(base: usize, offset: &Global<u32>) -> Option<T> {
    load(base + offset.load() as usize)
}
