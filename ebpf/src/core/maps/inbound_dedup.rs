//! Deduplication of inbound connections.
//!
//! sk_lookup runs for every packet that finds no socket, and cannot see whether the packet is a SYN. One that arrives
//! after its connection has been closed, such as the acknowledgment of a reset's last data, looks like a new connection.

use core::ptr;

use aya_ebpf::{
    Global, btf_maps::Array, helpers::generated::bpf_ktime_get_coarse_ns, macros::btf_map,
};
use sidetrack_common::conn::HandshakeKey;

/// Slots, a power of two. A connection that loses its slot to another one may count twice. One with the hash of
/// another one does not count.
const SLOTS: u32 = 4096;
/// A tick has 2^20 ns, about a millisecond.
const TICK_BITS: u32 = 20;
/// For so many ticks, about a second, packets with the same ports are of one connection. A client needs longer to use all its ports:
/// they are tens of thousands, and one sidecar accepts fewer connections a second.
const DEDUP_TTL_TICKS: u32 = 1000;

/// Random: the loader sets it. No pod can forge a connection that counts as one of another pod. The value here is
/// that of no other constant, because the compiler gives constants with equal values one place.
#[unsafe(no_mangle)]
static INBOUND_SEED: Global<u64> = Global::new(0x51de_5eed);

/// A connection each: the upper half of its hash, and the tick it was seen at. Eight bytes, because each inbound
/// connection waits for its slot to come from memory. Not pinned: a new build of the program begins with none.
#[btf_map]
static INBOUND_DEDUP: Array<u64, { SLOTS as usize }> = Array::new();

/// Whether this is a packet of a connection that was seen a moment ago. If not it is remembered.
#[inline(always)]
pub fn is_repeated(key: &HandshakeKey) -> bool {
    let hash = key.hash(INBOUND_SEED.load());
    let Some(slot) = INBOUND_DEDUP.get_ptr_mut(hash as u32 & (SLOTS - 1)) else {
        return false;
    };
    // SAFETY: takes nothing and returns a number.
    let tick = (unsafe { bpf_ktime_get_coarse_ns() } >> TICK_BITS) as u32;
    let name = (hash >> 32) as u32;
    // SAFETY: a slot of the array, which is never freed, read and written as a whole. Of programs on two CPUs the
    // last one has it.
    unsafe {
        let known = ptr::read_volatile(slot);
        if (known >> 32) as u32 == name && tick.wrapping_sub(known as u32) < DEDUP_TTL_TICKS {
            return true;
        }
        ptr::write_volatile(slot, u64::from(name) << 32 | u64::from(tick));
    }
    false
}
