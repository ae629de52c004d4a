//! All maps, and the only code that accesses their memory.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{
        BPF_EXIST, BPF_F_NO_PREALLOC, BPF_NOEXIST, bpf_map_type, bpf_sk_lookup, bpf_sock_ops,
    },
    btf_maps::{Array, HashMap, PerCpuArray, PerCpuHashMap, ProgramArray, SkStorage},
    helpers::{
        bpf_map_lookup_elem, bpf_sk_assign, bpf_sk_release, bpf_sk_storage_get,
        bpf_sock_hash_update,
    },
    macros::btf_map,
    programs::SkLookupContext,
};
use sidetrack_common::{
    conn::{CountKey, Handshake, HandshakeKey, ListenerKey, SockRecord},
    names::{HANDSHAKE_CAPACITY, HANDSHAKE_RESERVE, HANDSHAKE_SHARE},
    pod::{IfaceKey, IfaceRow, Pod, Route, RouteKey},
    policy::{OwnerKey, Policy, PortKey, RangeKey},
    rule::Rule,
};

const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// Enrolled pods, written by the agent. A namespace without a row is not intercepted.
#[btf_map]
static POD_BY_NETNS: HashMap<u64, Pod, 4096, ON_DEMAND> = HashMap::new();

/// Policies; rows never change once written.
#[btf_map]
static POLICY_BY_ID: HashMap<u32, Policy, 4096, ON_DEMAND> = HashMap::new();

/// Port lists of policies.
#[btf_map]
static PORT_RULES: HashMap<PortKey, u32, 1_048_576, ON_DEMAND> = HashMap::new();

/// Uid and gid lists of policies.
#[btf_map]
static OWNER_RULES: HashMap<OwnerKey, u32, 65_536, ON_DEMAND> = HashMap::new();

/// CIDR lists of policies.
#[btf_map]
static RANGE_RULES: OwnMap<LPM_TRIE, RangeKey, u32, 1_048_576, ON_DEMAND> = OwnMap::new();

/// Routes of enrolled pods; the agent keeps them up to date through netlink.
#[btf_map]
static ROUTE_BY_POD: OwnMap<LPM_TRIE, RouteKey, Route, 262_144, ON_DEMAND> = OwnMap::new();

/// Ingress interfaces of enrolled pods that rules name.
#[btf_map]
static IFACE_BY_POD: HashMap<IfaceKey, IfaceRow, 65_536, ON_DEMAND> = HashMap::new();

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

/// The dialed address, kept in the two sockets of a redirected connection.
#[btf_map]
static RECORD_BY_SOCK: SkStorage<SockRecord> = SkStorage::new();

/// The sidecars' listening sockets, stored when they call listen.
#[btf_map]
static LISTENERS: OwnMap<SOCKHASH, ListenerKey, u64, 65_536, 0> = OwnMap::new();

/// The program that decides inbound connections. Every pod's program tail calls it, so that the kernel
/// verifies it once and an upgrade replaces it for all pods at once.
#[btf_map]
static ARRIVAL_PROGRAM: ProgramArray<1> = ProgramArray::new();

/// The pod of the inbound connection this CPU handles, from the pod's program to the one it tail
/// calls. Pinned, because the two may belong to different agents during an upgrade.
#[btf_map]
static ARRIVAL_NETNS: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Connections by pod and deciding rule.
#[btf_map]
static COUNT_BY_RULE: PerCpuHashMap<CountKey, u64, 65_536, ON_DEMAND> = PerCpuHashMap::new();

/// Pods that bypass their sidecar because it has not listened yet. The agent adds a row once in a pod's
/// life; the first listener removes it.
#[btf_map]
static BEFORE_SIDECAR: HashMap<u64, u32, 4096, ON_DEMAND> = HashMap::new();

const LPM_TRIE: usize = bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as usize;
const SOCKHASH: usize = bpf_map_type::BPF_MAP_TYPE_SOCKHASH as usize;

/// A map definition for two types that aya's own definitions do not fit. aya's trie wraps keys in a
/// packed struct, and the verifier rejects the unaligned stack accesses. aya's sockhash has 4-byte
/// values, and the kernel returns the sockets' cookies to the agent only for 8-byte values.
#[repr(C)]
struct OwnMap<const TYPE: usize, K, V, const MAX_ENTRIES: usize, const FLAGS: usize> {
    r#type: *const [i32; TYPE],
    key: *const K,
    value: *const V,
    max_entries: *const [i32; MAX_ENTRIES],
    map_flags: *const [i32; FLAGS],
}

// SAFETY: the pointers are placeholders that the loader reads as BTF; they are never dereferenced.
unsafe impl<const TYPE: usize, K, V, const MAX_ENTRIES: usize, const FLAGS: usize> Sync
    for OwnMap<TYPE, K, V, MAX_ENTRIES, FLAGS>
{
}

impl<const TYPE: usize, K, V, const MAX_ENTRIES: usize, const FLAGS: usize>
    OwnMap<TYPE, K, V, MAX_ENTRIES, FLAGS>
{
    const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    #[inline(always)]
    fn as_ptr(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    #[inline(always)]
    fn lookup(&self, key: &K) -> *mut c_void {
        // SAFETY: the loader replaces this static by the map's address; the helper takes it with a
        // key of the declared size.
        unsafe { bpf_map_lookup_elem(self.as_ptr(), core::ptr::from_ref(key).cast()) }
    }
}

impl<K, V, const MAX_ENTRIES: usize> OwnMap<LPM_TRIE, K, V, MAX_ENTRIES, ON_DEMAND> {
    #[inline(always)]
    fn get(&self, key: &K) -> Option<&V> {
        // SAFETY: null or a value of the declared type, which lives until a grace period after its
        // deletion.
        unsafe { self.lookup(key).cast::<V>().as_ref() }
    }
}

/// The pod with this network namespace, if it is enrolled.
#[inline(always)]
pub fn pod(netns: u64) -> Option<&'static Pod> {
    // SAFETY: rows are freed after a grace period, and the program ends before that. A reader may hold
    // a row that is being replaced, but the kernel replaces whole elements.
    unsafe { POD_BY_NETNS.get(netns) }
}

/// A policy.
#[inline(always)]
pub fn policy(id: u32) -> Option<&'static Policy> {
    // SAFETY: as above; policies are never modified.
    unsafe { POLICY_BY_ID.get(id) }
}

/// A port's position in a policy's list.
#[inline(always)]
pub fn port_rule(key: &PortKey) -> Option<u32> {
    // SAFETY: as above.
    unsafe { PORT_RULES.get(key) }.copied()
}

/// An owner's position in a policy's list.
#[inline(always)]
pub fn owner_rule(key: &OwnerKey) -> Option<u32> {
    // SAFETY: as above.
    unsafe { OWNER_RULES.get(key) }.copied()
}

/// The position, in a policy's list, of the range that holds an address.
#[inline(always)]
pub fn range_rule(key: &RangeKey) -> Option<u32> {
    RANGE_RULES.get(key).copied()
}

/// A pod's route to an address.
#[inline(always)]
pub fn route(key: &RouteKey) -> Option<&'static Route> {
    ROUTE_BY_POD.get(key)
}

/// How the policy treats an ingress interface.
#[inline(always)]
pub fn iface(key: &IfaceKey) -> Option<IfaceRow> {
    // SAFETY: as above.
    unsafe { IFACE_BY_POD.get(key) }.copied()
}

/// Whether a pod's connections bypass its sidecar because it has not listened yet.
#[inline(always)]
pub fn is_before_sidecar(netns: u64) -> bool {
    // SAFETY: the value is not read, only whether the row exists.
    unsafe { BEFORE_SIDECAR.get(&netns) }.is_some()
}

/// Ends the bypass of a sidecar that now listens.
#[inline(always)]
pub fn end_before_sidecar(netns: u64) {
    let _ = BEFORE_SIDECAR.remove(&netns);
}

/// Whether another connection of a pod may be redirected. Checked in connect; the reserve covers those
/// that pass the check at the same time.
#[inline(always)]
pub fn handshakes_have_room(netns: u64) -> bool {
    // Signed: a count that drifted below zero must not refuse connections.
    const ROOM: i64 = (HANDSHAKE_CAPACITY - HANDSHAKE_RESERVE) as i64;
    // SAFETY: a number, read whole.
    let own = unsafe { HANDSHAKES_BY_POD.get(netns) }.map_or(0, |count| *count as i64);
    match HANDSHAKE_COUNT.get(0) {
        Some(count) => (*count as i64) < ROOM && own < i64::from(HANDSHAKE_SHARE),
        None => false,
    }
}

#[inline(always)]
fn add(count: *mut u64, change: u64) {
    // core has no fetch_add for this target, only loads and stores.
    // SAFETY: adds to a valid, aligned map value; all writers do it this way.
    unsafe {
        core::arch::asm!(
            "lock *(u64 *)({count} + 0) += {change}",
            count = in(reg) count,
            change = in(reg) change,
        );
    }
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
    // SAFETY: as for pods.
    unsafe { HANDSHAKES.get(key) }
}

/// Removes a handshake row.
#[inline(always)]
pub fn withdraw(key: &HandshakeKey) {
    if HANDSHAKES.remove(key).is_ok() {
        uncount_handshake(key.netns);
    }
}

/// A socket's record. `create` adds an empty one if there is none. `None` when the kernel has no
/// memory or there is no record.
///
/// `sk` must come from a program context and not be null: the verifier rejects anything else.
#[inline(always)]
pub fn record(sk: *mut c_void, create: bool) -> Option<&'static mut SockRecord> {
    const CREATE: u64 = aya_ebpf::bindings::BPF_SK_STORAGE_GET_F_CREATE as u64;
    let flags = if create { CREATE } else { 0 };
    // SAFETY: the map is given by its static, the socket by the context; the storage lives as long
    // as the socket, which the running program keeps alive. Sockets are locked while connecting,
    // so records have one writer.
    unsafe {
        let map = core::ptr::addr_of!(RECORD_BY_SOCK).cast_mut().cast();
        bpf_sk_storage_get(map, sk, core::ptr::null_mut(), flags)
            .cast::<SockRecord>()
            .as_mut()
    }
}

/// Stores the listening socket of a callback in a slot; fails if the slot is taken.
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

/// Tail calls the program that decides inbound connections. Returns only if that fails.
#[inline(always)]
pub fn run_inbound_program(ctx: &SkLookupContext, netns: u64) {
    let Some(slot) = ARRIVAL_NETNS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's own value. Lookups for packets run with bottom halves disabled, so none begins
    // on this CPU before the program that continues has read it. (A sock_diag query for one socket
    // runs with them enabled and might get another pod's result; it assigns no connection.)
    unsafe { *slot = netns };
    // SAFETY: nothing here needs to be dropped.
    unsafe { ARRIVAL_PROGRAM.tail_call(ctx, 0) };
}

/// The pod of the inbound connection; 0, which no pod has, if there is none.
#[inline(always)]
pub fn inbound_netns() -> u64 {
    ARRIVAL_NETNS.get(0).copied().unwrap_or(0)
}

/// Counts a connection under the rule that decided it. A full table loses counts, never traffic.
#[inline(always)]
pub fn count(netns: u64, rule: Rule, index: u32) {
    let key = CountKey {
        netns,
        rule: rule as u32,
        index,
    };
    if let Some(count) = COUNT_BY_RULE.get_ptr_mut(&key) {
        // SAFETY: this CPU's own value; programs of one CPU do not preempt each other here, and a
        // lost increment would only be a lost count.
        unsafe { *count += 1 };
        return;
    }
    let _ = COUNT_BY_RULE.insert(&key, &1, BPF_NOEXIST as u64);
}
