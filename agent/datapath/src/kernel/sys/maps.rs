//! Maps: create, freeze, and untyped access to their rows. Typed access is in
//! [`table`](crate::kernel::table).

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use aya_obj::generated::{BPF_F_NO_PREALLOC, bpf_attr, bpf_cmd, bpf_map_info, bpf_map_type};

use super::{
    call::{absent_is_false, bpf, bpf_fd, bpf_read, object_name, raw},
    objects::info,
};

/// Creates a map without BTF.
pub fn map_create(
    map_type: bpf_map_type,
    name: &str,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, |attr| {
        attr.__bindgen_anon_1.map_type = map_type as u32;
        attr.__bindgen_anon_1.key_size = key_size;
        attr.__bindgen_anon_1.value_size = value_size;
        attr.__bindgen_anon_1.max_entries = max_entries;
        attr.__bindgen_anon_1.map_flags = flags;
        attr.__bindgen_anon_1.map_name = object_name(name);
    })
}

/// Creates a socket storage map. The kernel requires BTF for it; `int` is the id of a 4-byte integer
/// in that BTF.
pub fn storage_map_create(name: &str, btf: BorrowedFd<'_>, int: u32) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, |attr| {
        attr.__bindgen_anon_1.map_type = bpf_map_type::BPF_MAP_TYPE_SK_STORAGE as u32;
        attr.__bindgen_anon_1.key_size = 4;
        attr.__bindgen_anon_1.value_size = 4;
        attr.__bindgen_anon_1.map_flags = BPF_F_NO_PREALLOC;
        attr.__bindgen_anon_1.map_name = object_name(name);
        attr.__bindgen_anon_1.btf_fd = raw(btf);
        attr.__bindgen_anon_1.btf_key_type_id = int;
        attr.__bindgen_anon_1.btf_value_type_id = int;
    })
}

/// Describes a map.
pub fn map_info(map: BorrowedFd<'_>) -> io::Result<bpf_map_info> {
    // SAFETY: `bpf_map_info` is one of these structs.
    unsafe { info(map) }
}

/// Makes a map read-only for user space; the verifier then treats its values as constants.
pub fn map_freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    bpf(bpf_cmd::BPF_MAP_FREEZE, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
    })
    .map(drop)
}

/// Reads a value; `Ok(false)` when the key is absent. `value` must hold the map's value size (for
/// per-CPU maps: 8-byte slots for every possible CPU).
pub fn map_lookup(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let found = bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    });
    absent_is_false(found)
}

/// Writes a value; `flags` as in bpf(2): 0 any, 1 only if absent, 2 only if present.
pub fn map_update(map: BorrowedFd<'_>, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_ptr() as u64;
        attr.__bindgen_anon_2.flags = flags;
    })
    .map(drop)
}

/// Copies a key's value and deletes the key, in one step; `Ok(false)` when it was absent. Per-CPU hash tables have this
/// since Linux 5.14.
pub fn map_take(map: BorrowedFd<'_>, key: &[u8], value: &mut [u8]) -> io::Result<bool> {
    let found = bpf(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    });
    absent_is_false(found)
}

/// Deletes a key; `Ok(false)` when it was absent.
pub fn map_delete(map: BorrowedFd<'_>, key: &[u8]) -> io::Result<bool> {
    let deleted = bpf(bpf_cmd::BPF_MAP_DELETE_ELEM, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.as_ptr() as u64;
    });
    absent_is_false(deleted)
}

/// Writes the key after `key` (the first, for `None`) to `next`; `Ok(false)` at the end.
pub fn map_next_key(map: BorrowedFd<'_>, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
    let found = bpf(bpf_cmd::BPF_MAP_GET_NEXT_KEY, |attr| {
        attr.__bindgen_anon_2.map_fd = raw(map);
        attr.__bindgen_anon_2.key = key.map_or(0, |key| key.as_ptr() as u64);
        attr.__bindgen_anon_2.__bindgen_anon_1.next_key = next.as_mut_ptr() as u64;
    });
    absent_is_false(found)
}

/// Copies the next rows of a hash table or trie to the starts of `keys` and `values`, which have room for `room` rows
/// (as [`map_lookup`] for per-CPU maps). Returns their number, and whether they are the last. An empty `position` is the
/// start of the map; it is moved behind the rows.
///
/// The kernel copies whole buckets of a hash table. None at all, and not the last, says that the next one needs more
/// room (Linux 5.6; tries 5.13).
pub fn map_batch(
    map: BorrowedFd<'_>,
    position: &mut Vec<u8>,
    keys: &mut [u8],
    values: &mut [u8],
    room: usize,
) -> io::Result<(usize, bool)> {
    // A bucket's number, or a trie's key.
    let mut next = vec![0; (keys.len() / room).max(size_of::<u32>())];
    let mut rows = 0;
    // SAFETY: the kernel wrote the number of rows where it had read the room for them.
    let read = |attr: &bpf_attr| unsafe { attr.batch.count };
    let copied = bpf_read(
        bpf_cmd::BPF_MAP_LOOKUP_BATCH,
        |attr| {
            attr.batch.map_fd = raw(map);
            attr.batch.in_batch = if position.is_empty() {
                0
            } else {
                position.as_ptr() as u64
            };
            attr.batch.out_batch = next.as_mut_ptr() as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            attr.batch.count = room as u32;
        },
        |attr| rows = read(attr) as usize,
    );
    *position = next;
    match copied {
        Ok(_) => Ok((rows, false)),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT) => Ok((rows, true)),
            // Of a trie, a row that was removed several times while it was to be copied.
            Some(libc::ENOSPC | libc::EINTR) => Ok((rows, false)),
            _ => Err(error),
        },
    }
}
