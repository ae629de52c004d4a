//! Typed access to a map by its descriptor.

use std::{
    collections::HashSet,
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_SOCKHASH;
use bytemuck::Pod;

use super::sys;

/// A map whose keys and values have the given layout.
#[derive(Debug)]
pub struct Table<K, V> {
    fd: OwnedFd,
    /// Whether its values are sockets: the kernel lists them key by key only.
    has_sockets: bool,
    _types: PhantomData<fn(K) -> V>,
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// Wraps a map; fails if its key or value size differs.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = sys::map_info(fd.as_fd())?;
        let (want_key, want_value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        if (info.key_size, info.value_size) != (want_key, want_value) {
            return Err(io::Error::other(format!(
                "the map has {}-byte keys and {}-byte values, this sidetrack needs {want_key} and {want_value}",
                info.key_size, info.value_size
            )));
        }
        Ok(Self {
            fd,
            has_sockets: info.type_ == BPF_MAP_TYPE_SOCKHASH as u32,
            _types: PhantomData,
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = vec![0; size_of::<V>()];
        let found = sys::map_lookup(self.fd(), bytemuck::bytes_of(key), &mut value)?;
        Ok(found.then(|| bytemuck::pod_read_unaligned(&value)))
    }

    /// Whether a key has this value. The caller's buffer is used again, for frequent checks.
    /// In a trie the value is that of the longest prefix that holds the key.
    pub fn holds(&self, key: &K, value: &V, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.resize(size_of::<V>(), 0);
        let found = sys::map_lookup(self.fd(), bytemuck::bytes_of(key), buffer)?;
        Ok(found && buffer == bytemuck::bytes_of(value))
    }

    /// Writes a row, whether it exists or not.
    pub fn insert(&self, key: &K, value: &V) -> io::Result<()> {
        let (key, value) = (bytemuck::bytes_of(key), bytemuck::bytes_of(value));
        sys::map_update(self.fd(), key, value, 0)
    }

    /// Removes a row. Returns whether there was one.
    pub fn remove(&self, key: &K) -> io::Result<bool> {
        sys::map_delete(self.fd(), bytemuck::bytes_of(key))
    }

    /// Removes a row and returns its value: no program changes it between the two.
    pub fn take(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = vec![0; size_of::<V>()];
        let found = sys::map_take(self.fd(), bytemuck::bytes_of(key), &mut value)?;
        Ok(found.then(|| bytemuck::pod_read_unaligned(&value)))
    }

    /// All keys at this time. Rows that are added or removed meanwhile may be missed; none is listed twice.
    pub fn keys(&self) -> io::Result<Vec<K>> {
        let mut keys = Vec::new();
        self.visit_keys(|key| keys.push(key))?;
        Ok(keys)
    }

    /// Whether there is no row at this time.
    pub fn is_empty(&self) -> io::Result<bool> {
        let mut first = vec![0; size_of::<K>()];
        Ok(!sys::map_next_key(self.fd(), None, &mut first)?)
    }

    /// All rows at this time, as [`Self::keys`]; not of sockets.
    pub fn rows(&self) -> io::Result<Vec<(K, V)>> {
        let mut rows = Vec::new();
        self.visit_rows(|key, value| rows.push((key, value)))?;
        Ok(rows)
    }

    /// Shows all rows, one by one: a map may have more than are to be in memory.
    pub fn visit_rows(&self, mut show: impl FnMut(K, V)) -> io::Result<()> {
        visit(self.fd(), size_of::<V>(), |key, value| {
            show(key, bytemuck::pod_read_unaligned(value));
        })
    }

    /// The number of rows at this time, and the capacity.
    pub fn usage(&self) -> io::Result<(u64, u64)> {
        let mut rows = 0;
        self.visit_keys(|_| rows += 1)?;
        Ok((rows, capacity(self.fd())?))
    }

    fn visit_keys(&self, mut show: impl FnMut(K)) -> io::Result<()> {
        if self.has_sockets {
            return visit_one_by_one(self.fd(), show);
        }
        visit(self.fd(), size_of::<V>(), |key, _| show(key))
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Shows all rows of a map, some at a time. The kernel copies whole buckets of a hash table, so that none is shown twice.
fn visit<K: Pod>(
    map: BorrowedFd<'_>,
    value_size: usize,
    mut show: impl FnMut(K, &[u8]),
) -> io::Result<()> {
    const BYTES: usize = 64 << 10;
    let mut room = (BYTES / (size_of::<K>() + value_size)).max(1);
    let [mut keys, mut values, mut position] = [const { Vec::new() }; 3];
    loop {
        keys.resize(room * size_of::<K>(), 0);
        values.resize(room * value_size, 0);
        let (rows, is_last) = sys::map_batch(map, &mut position, &mut keys, &mut values, room)?;
        let keys = keys.chunks_exact(size_of::<K>()).take(rows);
        for (key, value) in keys.zip(values.chunks_exact(value_size)) {
            show(bytemuck::pod_read_unaligned(key), value);
        }
        if is_last {
            return Ok(());
        }
        // The next bucket needs more.
        if rows == 0 {
            room *= 2;
        }
    }
}

/// Shows all keys of a map, one by one. The kernel starts again at the first key when the previous one has been deleted,
/// so keys that were seen are remembered.
fn visit_one_by_one<K: Pod>(map: BorrowedFd<'_>, mut show: impl FnMut(K)) -> io::Result<()> {
    let mut seen: HashSet<Vec<u8>> = HashSet::new();
    let mut key: Option<Vec<u8>> = None;
    let mut next = vec![0; size_of::<K>()];
    while sys::map_next_key(map, key.as_deref(), &mut next)? {
        if seen.insert(next.clone()) {
            show(bytemuck::pod_read_unaligned(&next));
        } else if key.as_ref() == Some(&next) {
            break;
        }
        key = Some(next.clone());
    }
    Ok(())
}

fn capacity(map: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(u64::from(sys::map_info(map)?.max_entries))
}
