//! Records of single sockets.

use core::ffi::c_void;

use aya_ebpf::{btf_maps::SkStorage, helpers::bpf_sk_storage_get, macros::btf_map};
use sidetrack_common::conn::SockRecord;

/// The dialed address, kept in the two sockets of a redirected connection that has no dedicated target; and that a
/// connection is left alone.
#[btf_map]
static RECORD_BY_SOCK: SkStorage<SockRecord> = SkStorage::new();

/// A socket's record. `create` adds an empty one if there is none. `None` when the kernel has no
/// memory or there is no record.
///
/// `sk` must come from a program context and not be null: the verifier rejects anything else.
#[inline(always)]
pub fn record(sk: *mut c_void, create: bool) -> Option<&'static mut SockRecord> {
    const CREATE: u64 = aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE as u64;
    let flags = if create { CREATE } else { 0 };
    // SAFETY: the map is given by its static, the socket by the context; the storage lives as long
    // as the socket, which the running program keeps alive. Sockets are locked while connecting,
    // so records have one writer.
    unsafe {
        let map = core::ptr::addr_of!(RECORD_BY_SOCK).cast_mut().cast();
        bpf_sk_storage_get(map, sk, core::ptr::null_mut(), flags)
            .cast::<SockRecord>()
            .as_mut()
    }
}
