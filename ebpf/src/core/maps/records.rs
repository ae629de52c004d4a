//! Records of single sockets, and how many each pod has. The kernel charges them to the agent, whatever the pod's own limits are.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_NOEXIST, BPF_SK_STORAGE_GET_F_CREATE},
    btf_maps::{HashMap, SkStorage},
    helpers::bpf_sk_storage_get,
    macros::btf_map,
};
use sidetrack_common::{
    conn::{SockRecord, StoredRecord},
    names::{POOL_IN_USE, RECORD_GUARANTEE, RECORD_POOL, RECORD_QUOTA},
    rule::Rule,
};
use sidetrack_ebpf::own_map::ON_DEMAND;

use super::atomic::add;

/// The dialed address, kept in the two sockets of a redirected connection that has no dedicated target; and that a
/// connection is not redirected.
#[btf_map]
static RECORD_BY_SOCK: SkStorage<StoredRecord> = SkStorage::new();

/// How many each pod has, and all together ([`POOL_IN_USE`]). No row means 0. The agent removes the row of a departed
/// pod that has none.
#[btf_map]
static RECORDS_BY_POD: HashMap<u64, u64, 8192, ON_DEMAND> = HashMap::new();

/// A socket's record, if it has one.
///
/// `sk` must come from a program context and not be null: the verifier rejects anything else.
#[inline(always)]
pub fn record(sk: *mut c_void) -> Option<&'static mut SockRecord> {
    stored(sk, 0).map(|stored| &mut stored.record)
}

/// Whether a pod may have another record. Sockets that ask at the same time may get a few more.
#[inline(always)]
fn has_room(netns: u64) -> bool {
    let own = counted(netns);
    own < RECORD_GUARANTEE || own < RECORD_QUOTA && counted(POOL_IN_USE) < RECORD_POOL
}

/// Keeps a record with a socket. It counts as so many of the pod's, until the socket is closed; 0 if another socket of the
/// connection pays. Fails if there is no room for another record, or the kernel has no memory.
#[inline(always)]
pub fn keep_record(
    netns: u64,
    sk: *mut c_void,
    record: &SockRecord,
    charge: u32,
) -> Result<(), Rule> {
    let is_paid = stored(sk, 0).is_some_and(|stored| stored.charge > 0);
    if charge > 0 && !is_paid && !has_room(netns) {
        return Err(Rule::RecordsFull);
    }
    let create = u64::from(BPF_SK_STORAGE_GET_F_CREATE);
    let stored = stored(sk, create).ok_or(Rule::NoStorage)?;
    stored.record = *record;
    if stored.charge == 0 && charge > 0 {
        stored.netns = netns;
        stored.charge = charge;
        count(netns, i64::from(charge));
    }
    Ok(())
}

/// A socket is being closed: its record no longer counts. Where the program runs twice for it, only the first counts. The
/// agent counts what the kernel keeps of it for long.
#[inline(always)]
pub fn release_record(sk: *mut c_void) {
    let Some(stored) = stored(sk, 0) else { return };
    if stored.charge > 0 {
        count(stored.netns, -i64::from(stored.charge));
        stored.released = stored.charge;
        stored.charge = 0;
    }
}

#[inline(always)]
fn stored(sk: *mut c_void, flags: u64) -> Option<&'static mut StoredRecord> {
    // SAFETY: the map is given by its static, the socket by the context; the storage lives as long
    // as the socket, which the running program keeps alive. Sockets are locked while connecting,
    // so records have one writer.
    unsafe {
        let map = core::ptr::addr_of!(RECORD_BY_SOCK).cast_mut().cast();
        bpf_sk_storage_get(map, sk, core::ptr::null_mut(), flags)
            .cast::<StoredRecord>()
            .as_mut()
    }
}

/// A count, which another CPU may have made less than 0 for a moment.
#[inline(always)]
fn counted(key: u64) -> i64 {
    // SAFETY: a number, read whole.
    unsafe { RECORDS_BY_POD.get(&key) }.map_or(0, |count| *count as i64)
}

/// Counts for the pod and for all. Without memory for a count its limit is not enforced until there is some.
#[inline(always)]
fn count(netns: u64, change: i64) {
    for key in [netns, POOL_IN_USE] {
        let _ = RECORDS_BY_POD.insert(&key, &0, BPF_NOEXIST.into());
        if let Some(count) = RECORDS_BY_POD.get_ptr_mut(&key) {
            add(count, change as u64);
        }
    }
}
