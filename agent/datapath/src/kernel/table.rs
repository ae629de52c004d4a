//! Typed access to a map by its descriptor.

use std::{
    collections::HashSet,
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_PERCPU_HASH, BPF_MAP_TYPE_SOCKHASH};
use bytemuck::Pod;

use super::sys;

/// A map whose keys and values have the given layout. A value of a map with one for each CPU is their sum.
#[derive(Debug)]
pub struct Table<K, V> {
    fd: OwnedFd,
    values: Values,
    _types: PhantomData<fn(K) -> V>,
}

/// What the values of a map are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// One for each key.
    Single,
    /// A number for each key and each of so many CPUs.
    PerCpu(usize),
    /// Sockets: the kernel lists them key by key only.
    Sockets,
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
        let is = |kind| info.type_ == kind as u32;
        let values = if is(BPF_MAP_TYPE_SOCKHASH) {
            Values::Sockets
        } else if is(BPF_MAP_TYPE_PERCPU_HASH) {
            if size_of::<V>() != size_of::<u64>() {
                return Err(io::Error::other("only numbers can be added up over CPUs"));
            }
            Values::PerCpu(cpus()?)
        } else {
            Values::Single
        };
        Ok(Self {
            fd,
            values,
            _types: PhantomData,
        })
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = vec![0; self.value_size()];
        let found = sys::map_lookup(self.fd(), bytemuck::bytes_of(key), &mut value)?;
        Ok(found.then(|| self.read(&value)))
    }

    /// Whether a key has this value. The caller's buffer is used again, for frequent checks.
    /// In a trie the value is that of the longest prefix that holds the key.
    pub fn holds(&self, key: &K, value: &V, buffer: &mut Vec<u8>) -> io::Result<bool> {
        buffer.resize(self.value_size(), 0);
        let found = sys::map_lookup(self.fd(), bytemuck::bytes_of(key), buffer)?;
        Ok(found && bytemuck::bytes_of(&self.read(buffer)) == bytemuck::bytes_of(value))
    }

    /// Writes a row, whether it exists or not. Where each CPU has a value, the others' become 0.
    pub fn insert(&self, key: &K, value: &V) -> io::Result<()> {
        let (key, value) = (bytemuck::bytes_of(key), bytemuck::bytes_of(value));
        let Values::PerCpu(_) = self.values else {
            return sys::map_update(self.fd(), key, value, 0);
        };
        let mut all = vec![0; self.value_size()];
        all[..value.len()].copy_from_slice(value);
        sys::map_update(self.fd(), key, &all, 0)
    }

    /// Removes a row. Returns whether there was one.
    pub fn remove(&self, key: &K) -> io::Result<bool> {
        sys::map_delete(self.fd(), bytemuck::bytes_of(key))
    }

    /// Removes a row and returns its value: no program changes it between the two.
    pub fn take(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = vec![0; self.value_size()];
        let found = sys::map_take(self.fd(), bytemuck::bytes_of(key), &mut value)?;
        Ok(found.then(|| self.read(&value)))
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
        visit(self.fd(), self.value_size(), |key, value| {
            show(key, self.read(value));
        })
    }

    /// The number of rows at this time, and the capacity.
    pub fn usage(&self) -> io::Result<(u64, u64)> {
        let mut rows = 0;
        self.visit_keys(|_| rows += 1)?;
        Ok((rows, capacity(self.fd())?))
    }

    fn visit_keys(&self, mut show: impl FnMut(K)) -> io::Result<()> {
        if self.values == Values::Sockets {
            return visit_one_by_one(self.fd(), show);
        }
        visit(self.fd(), self.value_size(), |key, _| show(key))
    }

    /// How many bytes the kernel copies for a value.
    fn value_size(&self) -> usize {
        match self.values {
            Values::PerCpu(cpus) => cpus * size_of::<u64>(),
            Values::Single | Values::Sockets => size_of::<V>(),
        }
    }

    fn read(&self, bytes: &[u8]) -> V {
        match self.values {
            Values::PerCpu(_) => bytemuck::pod_read_unaligned(bytemuck::bytes_of(&sum(bytes))),
            Values::Single | Values::Sockets => bytemuck::pod_read_unaligned(bytes),
        }
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many values the kernel copies for a key of a map with one for each CPU.
fn cpus() -> io::Result<usize> {
    aya::util::nr_cpus()
        .map_err(|(path, error)| io::Error::new(error.kind(), format!("read {path}: {error}")))
}

/// The sum of what all CPUs have counted.
fn sum(values: &[u8]) -> u64 {
    let counts = values.chunks_exact(size_of::<u64>());
    counts.map(bytemuck::pod_read_unaligned::<u64>).sum()
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
