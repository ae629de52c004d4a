//! `struct bpf_iter__sockmap`: one socket of a map of sockets, and what waits in its accept queue.

use core::{ffi::c_void, ptr};

use aya_ebpf::helpers::{bpf_ktime_get_ns, generated::bpf_seq_write};
use sidetrack_common::conn::ListenerKey;

use super::{
    number, offsets,
    task_file::cookie,
    typed::{Typed, follow, load, tcp_sock},
};

offsets! {
    OFFSET_SOCK_ACK_BACKLOG,
    OFFSET_SOCK_MAX_ACK_BACKLOG,
    OFFSET_ICSK_ACCEPT_QUEUE,
    OFFSET_QUEUE_HEAD,
    OFFSET_REQUEST_SYNACK,
}

/// `struct bpf_iter__sockmap` of net/core/sock_map.c.
#[repr(C)]
struct Context {
    meta: *mut Meta,
    map: *mut c_void,
    key: *const ListenerKey,
    sk: *mut c_void,
}

/// The first member of `struct bpf_iter_meta`.
#[repr(C)]
pub(super) struct Meta {
    seq: *mut c_void,
}

impl Meta {
    /// Writes a value to the reader of an iterator.
    ///
    /// # Safety
    /// `meta` is that of the program's own context.
    #[inline(always)]
    pub(super) unsafe fn write<T>(meta: *mut Self, value: &T) {
        // SAFETY: the caller's promise, and a value of the given size.
        unsafe {
            let seq = ptr::read_volatile(&raw const (*meta).seq);
            bpf_seq_write(
                seq.cast(),
                ptr::from_ref(value).cast(),
                size_of::<T>() as u32,
            );
        }
    }
}

/// A listening socket of the map.
pub struct MapSocket {
    ctx: *mut Context,
    /// Its key.
    pub key: ListenerKey,
    sk: *mut c_void,
    tcp: Typed,
}

impl MapSocket {
    /// Of the program's context; `None` at the end, and for what is no TCP socket.
    #[inline(always)]
    pub fn new(ctx: *mut c_void) -> Option<Self> {
        let ctx: *mut Context = ctx.cast();
        // SAFETY: the program's own context; the verifier checks every access.
        let (key, sk) = unsafe {
            (
                ptr::read_volatile(&raw const (*ctx).key),
                ptr::read_volatile(&raw const (*ctx).sk),
            )
        };
        if key.is_null() || sk.is_null() {
            return None;
        }
        let tcp = tcp_sock(sk.cast())?;
        // SAFETY: the map's key, which is of this type.
        let key = unsafe { ptr::read_volatile(key) };
        Some(Self { ctx, key, sk, tcp })
    }

    /// Its cookie. A socket that serves two families has two keys.
    #[inline(always)]
    pub fn cookie(&self) -> u64 {
        cookie(self.sk)
    }

    /// How many connections wait to be accepted.
    #[inline(always)]
    pub fn waiting(&self) -> u32 {
        load(self.tcp, &OFFSET_SOCK_ACK_BACKLOG)
    }

    /// How many may.
    #[inline(always)]
    pub fn limit(&self) -> u32 {
        load(self.tcp, &OFFSET_SOCK_MAX_ACK_BACKLOG)
    }

    /// For how many microseconds the first of them has waited; 0 if that is not known, as of one that began with a
    /// SYN cookie, and in `lockdown=confidentiality`.
    #[inline(always)]
    pub fn oldest_us(&self) -> u64 {
        let queue = self
            .tcp
            .wrapping_add(OFFSET_ICSK_ACCEPT_QUEUE.load() as usize);
        let head = follow(queue, &OFFSET_QUEUE_HEAD);
        if head.is_null() {
            return 0;
        }
        // By address: bpf_skc_to_tcp_request_sock finds no request of a listener that is in a map of sockets. The
        // sidecar may accept the connection meanwhile; what is read then is a number without meaning, which the next
        // look corrects.
        let begun: u64 = number::load_at(head as usize, &OFFSET_REQUEST_SYNACK).unwrap_or(0);
        // SAFETY: takes nothing.
        let now = unsafe { bpf_ktime_get_ns() } / 1_000;
        if begun == 0 {
            0
        } else {
            now.saturating_sub(begun)
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
