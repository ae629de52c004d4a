//! Inbound connections of a moment ago.
//!
//! sk_lookup runs for every packet that finds no socket, and cannot see whether the packet is a SYN. One that arrives
//! after its connection has been closed, such as the acknowledgment of a reset's last data, looks like a new connection.

use core::ptr;

use aya_ebpf::{btf_maps::Array, helpers::generated::bpf_ktime_get_coarse_ns, macros::btf_map};
use sidetrack_common::conn::{Arrival, HandshakeKey};

/// Slots, a power of two. A connection that loses its slot to another one may count twice.
const SLOTS: u32 = 4096;
/// For so long packets with the same ports are of one connection. A client needs longer to use all its ports: they
/// are tens of thousands, and one sidecar accepts fewer connections a second.
const WHILE_NS: u64 = 1_000_000_000;

/// Not pinned: a new build of the program begins with none.
#[btf_map]
static ARRIVALS: Array<Arrival, { SLOTS as usize }> = Array::new();

/// Whether this is a packet of a connection that was seen a moment ago. If not it is remembered.
#[inline(always)]
pub fn has_arrived(key: &HandshakeKey) -> bool {
    let Some(row) = ARRIVALS.get_ptr_mut(key.slot(SLOTS)) else {
        return false;
    };
    // SAFETY: takes nothing and returns a number.
    let now = unsafe { bpf_ktime_get_coarse_ns() };
    // SAFETY: a row of the array, which is never freed. Programs on two CPUs may write it at a time: then it is of no
    // connection, or of one of the two.
    unsafe {
        let known = ptr::read_volatile(row);
        if known.key.is(key) && now.wrapping_sub(known.at) < WHILE_NS {
            return true;
        }
        ptr::write_volatile(&raw mut (*row).key, *key);
        ptr::write_volatile(&raw mut (*row).at, now);
    }
    false
}
