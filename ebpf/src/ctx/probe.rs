//! Reads kernel memory at offsets that the loader takes from the kernel's BTF.

use core::ffi::c_void;

use aya_ebpf::{Global, bindings::bpf_sock, helpers::generated::bpf_probe_read_kernel};

/// The address of a socket. The verifier forbids arithmetic on a socket pointer. Once it is spilled to the
/// stack and read back by the helper it is a number. probe_read_kernel checks every address computed from
/// it.
#[inline(always)]
pub fn address(sk: *mut bpf_sock) -> Option<u64> {
    let mut spilled: *mut bpf_sock = core::ptr::null_mut();
    // SAFETY: a local variable.
    unsafe { core::ptr::write_volatile(&raw mut spilled, sk) };
    read((&raw const spilled).cast())
}

/// The pointer at an offset from an address; `None` if it is null or cannot be read.
#[inline(always)]
pub fn pointer(base: u64, offset: &Global<u32>) -> Option<u64> {
    let value: u64 = at(base, offset)?;
    (value != 0).then_some(value)
}

/// The value at an offset from an address.
#[inline(always)]
pub fn at<T: Copy + Default>(base: u64, offset: &Global<u32>) -> Option<T> {
    read((base + u64::from(offset.load())) as *const c_void)
}

#[inline(always)]
fn read<T: Copy + Default>(from: *const c_void) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the destination is a local of the given size; the source may be any address, the
    // helper fails on a bad one.
    let failed = unsafe {
        bpf_probe_read_kernel(
            (&raw mut value).cast(),
            size_of::<T>() as u32,
            from.cast_mut().cast(),
        )
    };
    (failed == 0).then_some(value)
}
