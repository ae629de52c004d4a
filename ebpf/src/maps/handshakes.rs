//! Handshake rows, and how many there are: every row that is added or removed is counted.

use aya_ebpf::{
    bindings::{BPF_EXIST, BPF_NOEXIST},
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use sidetrack_common::{
    conn::{Handshake, HandshakeKey},
    names::{HANDSHAKE_CAPACITY, HANDSHAKE_RESERVE, HANDSHAKE_SHARE},
};

use super::{atomic::add, own_map::ON_DEMAND};

/// Redirected connections whose sidecar side is not established yet. Preallocated, because the hook
/// that writes a row can no longer refuse the connection.
#[btf_map]
static HANDSHAKES: HashMap<HandshakeKey, Handshake, { HANDSHAKE_CAPACITY as usize }, 0> =
    HashMap::new();

/// How many rows HANDSHAKES has. connect reads it to refuse connections when the table is full.
#[btf_map]
static HANDSHAKE_COUNT: Array<u64, 1> = Array::new();

/// How many of them each pod has. A pod's first handshake creates its row, the agent removes it with the
/// pod. No row means 0.
#[btf_map]
static HANDSHAKES_BY_POD: HashMap<u64, u64, 4096, ON_DEMAND> = HashMap::new();

/// Whether another connection of a pod may be redirected. Checked in connect; the reserve covers those
/// that pass the check at the same time.
#[inline(always)]
pub fn handshakes_have_room(netns: u64) -> bool {
    // Signed: a count that drifted below zero must not refuse connections.
    const ROOM: i64 = (HANDSHAKE_CAPACITY - HANDSHAKE_RESERVE) as i64;
    let own = own_handshakes(netns);
    match HANDSHAKE_COUNT.get(0) {
        Some(count) => (*count as i64) < ROOM && own < i64::from(HANDSHAKE_SHARE),
        None => false,
    }
}

/// Whether a pod has no more rows than connections that passed the check at the same time can have.
#[inline(always)]
pub fn handshakes_are_few(netns: u64) -> bool {
    const SLACK: i64 = 256;
    own_handshakes(netns) < i64::from(HANDSHAKE_SHARE) + SLACK
}

/// How many rows a pod has, as they were counted.
#[inline(always)]
fn own_handshakes(netns: u64) -> i64 {
    // SAFETY: a number, read whole.
    unsafe { HANDSHAKES_BY_POD.get(netns) }.map_or(0, |count| *count as i64)
}

#[inline(always)]
fn count_handshake(netns: u64) {
    if let Some(count) = HANDSHAKE_COUNT.get_ptr_mut(0) {
        add(count, 1);
    }
    if let Some(count) = HANDSHAKES_BY_POD.get_ptr_mut(&netns) {
        return add(count, 1);
    }
    // Another CPU may have created the row first.
    let _ = HANDSHAKES_BY_POD.insert(&netns, &0, u64::from(BPF_NOEXIST));
    if let Some(count) = HANDSHAKES_BY_POD.get_ptr_mut(&netns) {
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
pub fn publish(key: &HandshakeKey, value: &Handshake) -> Result<(), ()> {
    // An existing row belongs to a closed connection with the same 4-tuple: replace it. It may be
    // withdrawn in between, hence the third try. Every insertion that adds a row is counted.
    for flags in [BPF_NOEXIST, BPF_EXIST, BPF_NOEXIST] {
        if HANDSHAKES.insert(key, value, u64::from(flags)).is_ok() {
            if flags == BPF_NOEXIST {
                count_handshake(key.netns);
            }
            return Ok(());
        }
    }
    Err(())
}

/// The handshake row of a connection, if it is a redirected one.
#[inline(always)]
pub fn handshake(key: &HandshakeKey) -> Option<&'static Handshake> {
    // SAFETY: rows are freed after a grace period, and the program ends before that.
    unsafe { HANDSHAKES.get(key) }
}

/// Removes a handshake row.
#[inline(always)]
pub fn withdraw(key: &HandshakeKey) {
    if HANDSHAKES.remove(key).is_ok() {
        uncount_handshake(key.netns);
    }
}
