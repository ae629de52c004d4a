//! The kernel's memory by address, where there is no typed pointer.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_probe_read_kernel;

/// The address that a pointer from a context leads to. The verifier knows what such a pointer leads to, and allows no
/// other offset than those of its fields. What a helper has copied is a number.
#[inline(always)]
pub fn of_pointer(pointer: *mut c_void) -> Option<usize> {
    load(core::ptr::from_ref(&pointer) as usize)
}

/// The value at an address.
#[inline(always)]
pub fn load<T>(at: usize) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(at as *const T) }.ok()
}
