//! The listening sockets of the sidecars.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_NOEXIST, bpf_sk_lookup, bpf_sock_ops},
    btf_maps::HashMap,
    helpers::{bpf_map_update_elem, bpf_sk_assign, bpf_sk_release, bpf_sock_hash_update},
    macros::btf_map,
};
use sidetrack_common::conn::{ListenerKey, Purpose, WantedKey, WantedListener};

use sidetrack_ebpf::own_map::{ON_DEMAND, OwnMap, SOCKHASH};

/// The sidecars' listening sockets, stored when they call listen.
#[btf_map]
static LISTENERS: OwnMap<SOCKHASH, ListenerKey, u64, 131_072, 0> = OwnMap::new();

/// Open listeners the agent looks for. Each agent has a map of its own.
#[btf_map]
static WANTED_LISTENER: HashMap<WantedKey, WantedListener, 2048, ON_DEMAND> = HashMap::new();

/// The row of a socket that a search is for.
#[inline(always)]
pub fn wanted_listener(socket: u64, purpose: Purpose) -> Option<&'static mut WantedListener> {
    let key = WantedKey {
        socket,
        purpose: purpose as u64,
    };
    // SAFETY: the map's memory, which lives as long as the program. The agent reads a row only after the program has
    // run over a process, and removes it after its last run.
    unsafe { WANTED_LISTENER.get_ptr_mut(&key)?.as_mut() }
}

/// Stores a socket in a slot; an error is the negative errno.
#[inline(always)]
pub fn add_socket(sk: *mut c_void, key: &ListenerKey) -> Result<(), i32> {
    // SAFETY: the map, a key of its type, and a socket that the kernel checks.
    let result = unsafe {
        bpf_map_update_elem(
            LISTENERS.as_ptr(),
            core::ptr::from_ref(key).cast(),
            sk,
            BPF_NOEXIST.into(),
        )
    };
    // Before Linux 6.4 only the lower half is the result (kernel commit d7ba4cc900bf).
    match result as i32 {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Stores the listening socket of a callback in a slot; an error is the negative errno.
#[inline(always)]
pub fn add_listener(ops: *mut bpf_sock_ops, key: &mut ListenerKey) -> Result<(), i32> {
    // SAFETY: the program's own context, the map and a key of its type.
    let result = unsafe {
        bpf_sock_hash_update(
            ops,
            LISTENERS.as_ptr(),
            core::ptr::from_mut(key).cast(),
            BPF_NOEXIST as u64,
        )
    };
    match result as i32 {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// Assigns an inbound connection to the listener in a slot; fails if the slot is empty or its socket
/// does not accept the connection's family.
#[inline(always)]
pub fn assign_listener(ctx: *mut bpf_sk_lookup, key: &ListenerKey) -> Result<(), ()> {
    let sk = LISTENERS.lookup(key);
    if sk.is_null() {
        return Err(());
    }
    // SAFETY: the program's own context and a socket with a reference of the lookup, released
    // right after.
    let failed = unsafe {
        let failed = bpf_sk_assign(ctx.cast(), sk, 0);
        bpf_sk_release(sk);
        failed
    };
    if failed == 0 { Ok(()) } else { Err(()) }
}
