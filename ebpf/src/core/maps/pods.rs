//! What is known of enrolled pods: the agent writes their rows, policies, routes and interfaces, the programs whether a
//! sidecar listens on loopback alone and whether others translate.

use core::{arch::asm, ops::Deref};

use aya_ebpf::{
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use sidetrack_common::{
    addr::Family,
    names::{
        IFACE_CAPACITY, OWNER_RULES_CAPACITY, PORT_RULES_CAPACITY, RANGE_RULES_CAPACITY,
        ROUTE_CAPACITY,
    },
    pod::{self, IfaceKey, IfaceRow, Pod, Route, RouteKey},
    policy::{OwnerKey, Policy, PortKey, RangeKey},
    route_rules::{self, MAX_SELECTORS, RouteSelector, RoutedSocket, SelectorsKey},
};

use sidetrack_ebpf::own_map::{LPM_TRIE, ON_DEMAND, OwnMap};

/// Enrolled pods, written by the agent. A namespace without a row is not intercepted.
#[btf_map]
static POD_BY_NETNS: HashMap<u64, Pod, 4096, ON_DEMAND> = HashMap::new();

/// Policies; rows never change once written.
#[btf_map]
static POLICY_BY_ID: HashMap<u32, Policy, 4096, ON_DEMAND> = HashMap::new();

/// Port lists of policies.
#[btf_map]
static PORT_RULES: HashMap<PortKey, u32, PORT_RULES_CAPACITY, ON_DEMAND> = HashMap::new();

/// Uid and gid lists of policies.
#[btf_map]
static OWNER_RULES: HashMap<OwnerKey, u32, OWNER_RULES_CAPACITY, ON_DEMAND> = HashMap::new();

/// CIDR lists of policies.
#[btf_map]
static RANGE_RULES: OwnMap<LPM_TRIE, RangeKey, u32, RANGE_RULES_CAPACITY, ON_DEMAND> =
    OwnMap::new();

/// Routes of enrolled pods; the agent keeps them up to date through netlink.
#[btf_map]
static ROUTE_BY_POD: OwnMap<LPM_TRIE, RouteKey, Route, ROUTE_CAPACITY, ON_DEMAND> = OwnMap::new();

/// What chooses between the views of pods' routes, where rules of policy routing do.
#[btf_map]
static SELECTORS_BY_POD: HashMap<SelectorsKey, [RouteSelector; MAX_SELECTORS], 8192, ON_DEMAND> =
    HashMap::new();

/// Ingress interfaces of enrolled pods that rules name.
#[btf_map]
static IFACE_BY_POD: HashMap<IfaceKey, IfaceRow, IFACE_CAPACITY, ON_DEMAND> = HashMap::new();

/// Pods that bypass their sidecar because it has not listened yet. The agent adds a row once in a pod's
/// life; the first listener removes it.
#[btf_map]
static BEFORE_SIDECAR: HashMap<u64, u32, 4096, ON_DEMAND> = HashMap::new();

/// What was seen of pods' sidecars: [`LOOPBACK_OUTBOUND`] and the bits beside it.
#[btf_map]
static SIDECAR_BY_POD: HashMap<u64, u32, 4096, ON_DEMAND> = HashMap::new();

/// What has been seen of proxies' connections since the programs were loaded, 1 for each: [`TRANSLATED`] and
/// [`ASSIGNED`].
#[btf_map]
static TRANSLATION: Array<u32, 2> = Array::new();

/// What the row of a pod says about its connections.
#[derive(Clone, Copy)]
pub struct Enrolled {
    /// Policy id.
    pub policy: u32,
    /// `POD_*` bits.
    pub flags: u32,
}

impl Enrolled {
    /// Whether this family's rules apply.
    #[inline(always)]
    pub fn captures(self, family: Family) -> bool {
        pod::captures(self.flags, family)
    }

    /// Whether destinations of this family have targets of their own.
    #[inline(always)]
    pub fn has_own_targets(self, family: Family) -> bool {
        pod::has_own_targets(self.flags, family)
    }
}

/// The pod with this network namespace, if it is enrolled. Copied, and at once: since Linux 6.1 the kernel may use
/// the memory of a row for another pod's as soon as the row is replaced.
#[inline(always)]
pub fn pod(netns: u64) -> Option<Enrolled> {
    // SAFETY: the row's memory stays the map's until a grace period after the program.
    let row = core::ptr::from_ref(unsafe { POD_BY_NETNS.get(netns) }?);
    // SAFETY: the first 8 bytes of the row, which is aligned to 8.
    let word = unsafe { row.cast::<u64>().read_volatile() };
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    Some(Enrolled {
        policy: u32::from_ne_bytes([a, b, c, d]),
        flags: u32::from_ne_bytes([e, f, g, h]),
    })
}

/// A policy.
#[inline(always)]
pub fn policy(id: u32) -> Option<PolicyRow> {
    // SAFETY: as above; policies are never modified.
    unsafe { POLICY_BY_ID.get(id) }.map(PolicyRow)
}

/// A policy that is read again for every use.
#[derive(Clone, Copy)]
pub struct PolicyRow(&'static Policy);

impl Deref for PolicyRow {
    type Target = Policy;

    #[inline(always)]
    fn deref(&self) -> &Policy {
        let mut row: *const Policy = self.0;
        // SAFETY: it contains no instruction, and the pointer is the one that it was. LLVM does not know that, and keeps
        // nothing that it has read by it.
        unsafe {
            asm!("", inout("r2") row, options(readonly, nostack, preserves_flags));
            &*row
        }
    }
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

/// The view that a socket has of its pod's routes.
#[inline(always)]
pub fn route_view(netns: u64, family: Family, socket: &RoutedSocket) -> u32 {
    let key = SelectorsKey::new(netns, family);
    // SAFETY: as above; a row that is being replaced may be read in parts, which gives a view that exists or has no routes.
    let Some(selectors) = (unsafe { SELECTORS_BY_POD.get(&key) }) else {
        return 0;
    };
    route_rules::view(selectors, socket, |mut number| {
        // SAFETY: it contains no instruction.
        unsafe {
            asm!("", inout("r2") number, options(nomem, nostack, preserves_flags));
        }
        number
    })
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

/// Whether one of these bits is set for a pod's sidecar.
#[inline(always)]
pub fn sidecar_has(netns: u64, bits: u32) -> bool {
    sidecar_bits(netns) & bits != 0
}

/// Sets or clears a bit of a pod's sidecar. Without memory for it, connections to a sidecar that needs it are refused.
#[inline(always)]
pub fn set_sidecar(netns: u64, bit: u32, is_set: bool) {
    let bits = sidecar_bits(netns);
    let changed = if is_set { bits | bit } else { bits & !bit };
    if changed == 0 {
        let _ = SIDECAR_BY_POD.remove(&netns);
    } else if changed != bits {
        let _ = SIDECAR_BY_POD.insert(&netns, &changed, 0);
    }
}

#[inline(always)]
fn sidecar_bits(netns: u64) -> u32 {
    // SAFETY: a number, read whole.
    unsafe { SIDECAR_BY_POD.get(&netns) }.map_or(0, |bits| *bits)
}

/// Index in [`TRANSLATION`]: another program translates destinations of proxies' connections.
const TRANSLATED: u32 = 0;
/// Index in [`TRANSLATION`]: a proxy in mode TPROXY has called its own pod.
const ASSIGNED: u32 = 1;

/// Whether another program translates destinations of proxies' connections to addresses of their pods.
#[inline(always)]
pub fn has_translation() -> bool {
    is_seen(TRANSLATED)
}

/// Whether handshake rows have other destinations than loopback.
#[inline(always)]
pub fn has_rows_off_loopback() -> bool {
    is_seen(TRANSLATED) || is_seen(ASSIGNED)
}

/// Remembers that another program translates.
#[inline(always)]
pub fn translation_seen() {
    see(TRANSLATED);
}

/// Remembers that a proxy's connection is assigned to a listener without a redirect.
#[inline(always)]
pub fn assignment_seen() {
    see(ASSIGNED);
}

#[inline(always)]
fn is_seen(index: u32) -> bool {
    TRANSLATION.get(index).is_some_and(|seen| *seen != 0)
}

#[inline(always)]
fn see(index: u32) {
    if let Some(seen) = TRANSLATION.get_ptr_mut(index) {
        // SAFETY: a number, written whole, always the same.
        unsafe { *seen = 1 };
    }
}
