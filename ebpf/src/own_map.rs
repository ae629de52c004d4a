//! A map definition for the types that aya's own do not fit.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_F_NO_PREALLOC, bpf_map_type},
    helpers::bpf_map_lookup_elem,
};

/// Rows are allocated when they are written.
pub const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// A longest-prefix trie.
pub const LPM_TRIE: usize = bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as usize;
/// A hash table of sockets.
pub const SOCKHASH: usize = bpf_map_type::BPF_MAP_TYPE_SOCKHASH as usize;

/// A map definition for two types that aya's own definitions do not fit. aya's trie wraps keys in a
/// packed struct, and the verifier rejects the unaligned stack accesses. aya's sockhash has 4-byte
/// values, and the kernel returns the sockets' cookies to the agent only for 8-byte values.
#[repr(C)]
pub struct OwnMap<const TYPE: usize, K, V, const MAX_ENTRIES: usize, const FLAGS: usize> {
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
    /// The definition; the loader creates the map.
    pub const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    /// The map, for helpers.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }

    /// The value of a key, or null.
    #[inline(always)]
    pub fn lookup(&self, key: &K) -> *mut c_void {
        // SAFETY: the loader replaces this static by the map's address; the helper takes it with a
        // key of the declared size.
        unsafe { bpf_map_lookup_elem(self.as_ptr(), core::ptr::from_ref(key).cast()) }
    }
}

impl<K, V, const MAX_ENTRIES: usize> OwnMap<LPM_TRIE, K, V, MAX_ENTRIES, ON_DEMAND> {
    /// The value of the longest prefix that holds the key.
    #[inline(always)]
    pub fn get(&self, key: &K) -> Option<&V> {
        // SAFETY: null or a value of the declared type, which lives until a grace period after its
        // deletion.
        unsafe { self.lookup(key).cast::<V>().as_ref() }
    }
}
