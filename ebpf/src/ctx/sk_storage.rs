//! `struct bpf_iter__bpf_sk_storage_map`: what one socket has in a map of sockets' storage.

use core::{ffi::c_void, ptr};

use sidetrack_common::conn::StoredRecord;

use super::sock_map::Meta;

/// That struct of net/core/bpf_sk_storage.c.
#[repr(C)]
struct Context {
    meta: *mut Meta,
    map: *mut c_void,
    sk: *mut c_void,
    value: *const StoredRecord,
}

/// What a socket has stored.
pub struct Stored {
    ctx: *mut Context,
    value: *const StoredRecord,
}

impl Stored {
    /// Of the program's context; `None` at the end.
    #[inline(always)]
    pub fn new(ctx: *mut c_void) -> Option<Self> {
        let ctx: *mut Context = ctx.cast();
        // SAFETY: the program's own context; the verifier checks every access.
        let value = unsafe { ptr::read_volatile(&raw const (*ctx).value) };
        (!value.is_null()).then_some(Self { ctx, value })
    }

    /// Cookie of the network namespace that its record is counted for, and how many it counts as while it is there.
    #[inline(always)]
    pub fn counted(&self) -> (u64, u32) {
        // SAFETY: the map's value, which is of this type. The socket may change it meanwhile.
        unsafe {
            let charge = ptr::read_volatile(&raw const (*self.value).charge);
            let released = ptr::read_volatile(&raw const (*self.value).released);
            (
                ptr::read_volatile(&raw const (*self.value).netns),
                charge + released,
            )
        }
    }

    /// Writes a value to the reader.
    #[inline(always)]
    pub fn write<T>(&self, value: &T) {
        // SAFETY: the program's own context.
        unsafe {
            let meta = ptr::read_volatile(&raw const (*self.ctx).meta);
            Meta::write(meta, value);
        }
    }
}
