//! The listening sockets of the sidecars.

use aya_ebpf::{
    bindings::{BPF_NOEXIST, bpf_sk_lookup, bpf_sock_ops},
    helpers::{bpf_sk_assign, bpf_sk_release, bpf_sock_hash_update},
    macros::btf_map,
};
use sidetrack_common::conn::ListenerKey;

use super::own_map::{OwnMap, SOCKHASH};

/// The sidecars' listening sockets, stored when they call listen.
#[btf_map]
static LISTENERS: OwnMap<SOCKHASH, ListenerKey, u64, 65_536, 0> = OwnMap::new();

/// Stores the listening socket of a callback in a slot; fails if the slot is in use.
#[inline(always)]
pub fn add_listener(ops: *mut bpf_sock_ops, key: &mut ListenerKey) -> Result<(), ()> {
    // SAFETY: the program's own context, the map and a key of its type.
    let failed = unsafe {
        bpf_sock_hash_update(
            ops,
            LISTENERS.as_ptr(),
            core::ptr::from_mut(key).cast(),
            BPF_NOEXIST as u64,
        )
    };
    if failed == 0 { Ok(()) } else { Err(()) }
}

/// Assigns an inbound connection to the listener in a slot; fails if the slot is empty or its socket
/// does not accept the connection's family.
#[inline(always)]
pub fn assign_listener(ctx: *mut bpf_sk_lookup, key: &ListenerKey) -> Result<(), ()> {
    let sk = LISTENERS.lookup(key);
    if sk.is_null() {
        return Err(());
    }
    // SAFETY: the program's own context and a socket that the lookup has taken a reference on,
    // given back right after.
    let failed = unsafe {
        let failed = bpf_sk_assign(ctx.cast(), sk, 0);
        bpf_sk_release(sk);
        failed
    };
    if failed == 0 { Ok(()) } else { Err(()) }
}
