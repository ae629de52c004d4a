//! Handshake rows, and how many there are: every row that is added or removed is counted.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_EXIST, BPF_NOEXIST},
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use sidetrack_common::{
    conn::{Handshake, HandshakeKey, HandshakeReason, HandshakeRow},
    names::{
        HANDSHAKE_CAPACITY, HANDSHAKE_GUARANTEE, HANDSHAKE_POOL, HANDSHAKE_QUOTA,
        HANDSHAKE_RESERVE, HANDSHAKE_TRANSLATED,
    },
};

use sidetrack_ebpf::own_map::ON_DEMAND;

use super::{atomic::add, keep_order};

/// Redirected connections whose sidecar side is not established yet. The hook that writes a row can no longer refuse
/// the connection. Without memory for the row sk_lookup refuses it, or the sidecar does not learn its destination; one to a
/// shared IPv6 target reaches that port of the pod itself, where hardly anything listens.
#[btf_map]
static HANDSHAKES: HashMap<HandshakeKey, HandshakeRow, { HANDSHAKE_CAPACITY as usize }, ON_DEMAND> =
    HashMap::new();

/// How many rows HANDSHAKES has. connect reads it to refuse connections when the part for all pods is full.
#[btf_map]
static HANDSHAKE_COUNT: Array<u64, 1> = Array::new();

/// Connections that needed a row, by [`HandshakeReason`].
#[btf_map]
static HANDSHAKES_BY_REASON: Array<u64, { HandshakeReason::ALL.len() }> = Array::new();

/// How many of them each pod has. The check before a pod's first handshake creates its row, the agent removes it with
/// the pod. No row means 0.
#[btf_map]
static HANDSHAKES_BY_POD: HashMap<u64, u64, 4096, ON_DEMAND> = HashMap::new();

/// Counts a connection that needs a row.
#[inline(always)]
pub fn count_reason(reason: HandshakeReason) {
    if let Some(count) = HANDSHAKES_BY_REASON.get_ptr_mut(reason as u32) {
        add(count, 1);
    }
}

/// Whether another connection of a pod may be redirected. Checked in connect; the reserve covers those
/// that pass the check at the same time.
#[inline(always)]
pub fn handshakes_have_room(netns: u64) -> bool {
    has_room(
        netns,
        HANDSHAKE_QUOTA,
        HANDSHAKE_POOL - HANDSHAKE_TRANSLATED - HANDSHAKE_RESERVE,
    )
}

/// The same for a row that is being added: connections that passed the check at the same time have one, those that
/// another process has put off meanwhile have not.
#[inline(always)]
pub fn handshakes_are_few(netns: u64) -> bool {
    has_room(
        netns,
        HANDSHAKE_QUOTA + SLACK,
        HANDSHAKE_POOL - HANDSHAKE_TRANSLATED,
    )
}

/// The same for a row of a connection that another program has translated, which nothing has checked. Redirected ones leave
/// a part of the pool to these.
#[inline(always)]
pub fn has_translated_room(netns: u64) -> bool {
    has_room(netns, HANDSHAKE_QUOTA + SLACK, HANDSHAKE_POOL)
}

/// Connections of a pod that can pass the check at the same time.
const SLACK: u32 = 256;

/// A pod has its guaranteed rows. More are from the part that is for all, of which a pod takes `most` rows while there
/// are fewer than `common`.
#[inline(always)]
fn has_room(netns: u64, most: u32, common: u32) -> bool {
    // Who cannot be counted has nothing guaranteed.
    let own = own_handshakes(netns);
    if own.is_some_and(|own| own < i64::from(HANDSHAKE_GUARANTEE)) {
        return true;
    }
    // Signed: a count that drifted below zero must not refuse connections.
    let all = HANDSHAKE_COUNT.get(0).map(|count| *count as i64);
    own.is_none_or(|own| own < i64::from(most)) && all.is_some_and(|all| all < i64::from(common))
}

/// How many rows a pod has, as they were counted; `None` if it has no count and there is no room for one.
#[inline(always)]
fn own_handshakes(netns: u64) -> Option<i64> {
    // SAFETY: a number, read whole.
    own_count(netns).map(|count| unsafe { ptr::read_volatile(count) } as i64)
}

/// A pod's count. The first call creates it.
#[inline(always)]
fn own_count(netns: u64) -> Option<*mut u64> {
    HANDSHAKES_BY_POD.get_ptr_mut(&netns).or_else(|| {
        // Another CPU may have created the row first.
        let _ = HANDSHAKES_BY_POD.insert(&netns, &0, u64::from(BPF_NOEXIST));
        HANDSHAKES_BY_POD.get_ptr_mut(&netns)
    })
}

#[inline(always)]
fn count_handshake(netns: u64) {
    if let Some(count) = HANDSHAKE_COUNT.get_ptr_mut(0) {
        add(count, 1);
    }
    if let Some(count) = own_count(netns) {
        add(count, 1);
    }
}

#[inline(always)]
fn uncount_handshake(netns: u64) {
    if let Some(count) = HANDSHAKE_COUNT.get_ptr_mut(0) {
        add(count, u64::MAX);
    }
    // Without a row the pod has been released meanwhile.
    if let Some(count) = HANDSHAKES_BY_POD.get_ptr_mut(&netns) {
        add(count, u64::MAX);
    }
}

/// Publishes the dialed address of a connection.
#[inline(always)]
pub fn publish_handshake(row: &HandshakeRow) -> Result<(), ()> {
    // An existing row belongs to a closed connection with the same 4-tuple: replace it. It may be
    // withdrawn in between, hence the third try. Every insertion that adds a row is counted.
    for flags in [BPF_NOEXIST, BPF_EXIST, BPF_NOEXIST] {
        if HANDSHAKES.insert(&row.key, row, u64::from(flags)).is_ok() {
            if flags == BPF_NOEXIST {
                count_handshake(row.key.netns);
            }
            return Ok(());
        }
    }
    Err(())
}

/// The handshake row of a connection, if it is a redirected one. A copy: when the row is removed, its memory is another
/// connection's at once.
#[inline(always)]
pub fn handshake(key: &HandshakeKey) -> Option<Handshake> {
    let row = HANDSHAKES.get_ptr(key)?;
    // SAFETY: the map's memory, which lives as long as the program. A row that takes its place is written key first.
    unsafe {
        let handshake = (*row).handshake;
        keep_order();
        (*row).key.is(key).then_some(handshake)
    }
}

/// Removes a handshake row.
#[inline(always)]
pub fn withdraw_handshake(key: &HandshakeKey) {
    if HANDSHAKES.remove(key).is_ok() {
        uncount_handshake(key.netns);
    }
}
