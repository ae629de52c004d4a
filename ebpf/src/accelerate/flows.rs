//! Accelerated connections.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_F_INGRESS, bpf_sock_ops, sk_action::SK_PASS, sk_msg_md},
    btf_maps::LruHashMap,
    helpers::{bpf_sock_hash_update, generated::bpf_msg_redirect_hash},
    macros::btf_map,
};
use sidetrack_common::flow::{Flow, FlowKey};

use sidetrack_ebpf::own_map::{OwnMap, SOCKHASH};

/// The sockets of both ends, each by the connection as it sees it. The kernel removes a socket that is closed.
/// When it is full, further connections are not accelerated.
#[btf_map]
static ACCELERATED: OwnMap<SOCKHASH, FlowKey, u64, 131_072, 0> = OwnMap::new();

/// What each end has sent. A row that had to make room leaves its connection to TCP.
#[btf_map]
static FLOWS: LruHashMap<FlowKey, Flow, 131_072> = LruHashMap::new();

/// A row of an end. Both ends change it, each its own fields.
pub struct FlowRow(*mut Flow);

/// What an end has sent.
#[inline(always)]
pub fn flow(key: &FlowKey) -> Option<FlowRow> {
    FLOWS.get_ptr_mut(key).map(FlowRow)
}

/// Writes what an end has sent.
#[inline(always)]
pub fn put_flow(key: &FlowKey, flow: &Flow) -> Result<(), ()> {
    FLOWS.insert(key, flow, 0).map_err(drop)
}

impl FlowRow {
    /// What it says now.
    #[inline(always)]
    pub fn get(&self) -> Flow {
        // SAFETY: a row lives until a grace period after its removal, and the program ends before that. Each
        // field is read whole.
        unsafe { ptr::read_volatile(self.0) }
    }

    /// For the reader: how far it has read.
    #[inline(always)]
    pub fn set_read(&self, read: u64, read_seq: u32) {
        // SAFETY: as above; only the reader writes these fields.
        unsafe {
            ptr::write_volatile(&raw mut (*self.0).read, read);
            ptr::write_volatile(&raw mut (*self.0).read_seq, read_seq);
        }
    }

    /// For the sender: what it has sent past TCP.
    #[inline(always)]
    pub fn set_sent(&self, sent: u64) {
        // SAFETY: as above; only the sender writes this field, and holds its socket's lock.
        unsafe { ptr::write_volatile(&raw mut (*self.0).sent, sent) };
    }

    /// For the sender: whether it sends by TCP.
    #[inline(always)]
    pub fn set_by_tcp(&self, by_tcp: bool) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.0).by_tcp, by_tcp.into()) };
    }
}

/// Stores a connection's socket.
#[inline(always)]
pub fn accelerate(ops: *mut bpf_sock_ops, key: &mut FlowKey) -> Result<(), ()> {
    // SAFETY: the program's own context, the map and a key of its type.
    let failed =
        unsafe { bpf_sock_hash_update(ops, ACCELERATED.as_ptr(), ptr::from_mut(key).cast(), 0) };
    if failed == 0 { Ok(()) } else { Err(()) }
}

/// Sends a message to the queue of the socket with this key; fails if there is none.
#[inline(always)]
pub fn redirect(msg: *mut sk_msg_md, key: &mut FlowKey) -> Result<(), ()> {
    // SAFETY: the program's own context, the map and a key of its type.
    let action = unsafe {
        bpf_msg_redirect_hash(
            msg,
            ACCELERATED.as_ptr(),
            ptr::from_mut(key).cast(),
            BPF_F_INGRESS.into(),
        )
    };
    if action == i64::from(SK_PASS) {
        Ok(())
    } else {
        Err(())
    }
}
