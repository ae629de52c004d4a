//! How much kernel memory the pinned maps take.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use aya_obj::generated::{BPF_F_NO_PREALLOC, bpf_map_type};

use super::{acceleration, maps::PINNED, pins::Pins, release, sys};

/// The first kernel that says what a map takes (kernel commit 90a5527d7686). Earlier ones say what its rows would take
/// if it were full.
const EXACT_SINCE: (u32, u32) = (6, 4);
/// Bytes of a bucket of a hash table: the head of its list and its lock.
const BUCKET: u64 = 16;
/// What a hash table takes beside its buckets and rows, about.
const HEADER: u64 = 1024;

/// What a map takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapMemory {
    /// Its name.
    pub map: &'static str,
    /// All of it, in bytes.
    pub bytes: u64,
    /// The part that comes and goes with its rows.
    pub row_bytes: u64,
    /// Rows it can have; 0 for one whose rows are parts of sockets.
    pub max_entries: u64,
}

/// Whether this kernel says what maps take.
#[must_use]
pub fn is_exact() -> bool {
    release::version().is_some_and(|version| version >= EXACT_SINCE)
}

/// What each pinned map takes, in the order of the table of maps.
///
/// # Errors
/// If one cannot be opened, or the kernel does not describe it.
pub fn of_maps(pins: &Pins) -> io::Result<Vec<MapMemory>> {
    let mut all = Vec::new();
    for map in PINNED.iter().chain(&acceleration::MAPS) {
        let fd = match sys::open_pinned_map_to_read(&pins.map(map)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let bytes = memory(fd.as_fd())?;
        let info = sys::map_info(fd.as_fd())?;
        let fixed = fixed(info.type_, info.map_flags, info.max_entries).unwrap_or(bytes);
        all.push(MapMemory {
            map,
            bytes,
            row_bytes: bytes.saturating_sub(fixed),
            max_entries: info.max_entries.into(),
        });
    }
    Ok(all)
}

/// `memlock` of a map of this process.
fn memory(map: BorrowedFd<'_>) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    field(&text, "memlock:").ok_or_else(|| io::Error::other("fdinfo has no memlock"))
}

/// A number in the text of fdinfo or of `/proc/PID/status`.
#[must_use]
pub fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a map takes without rows; `None` if that is all of it, because its rows are there from the start.
fn fixed(map_type: u32, flags: u32, max_entries: u32) -> Option<u64> {
    let is = |kind: bpf_map_type| map_type == kind as u32;
    let is_hash = is(bpf_map_type::BPF_MAP_TYPE_HASH) || is(bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH);
    let is_on_demand = flags & BPF_F_NO_PREALLOC != 0;
    if is(bpf_map_type::BPF_MAP_TYPE_LPM_TRIE) {
        Some(0)
    } else if is(bpf_map_type::BPF_MAP_TYPE_SOCKHASH) || is_hash && is_on_demand {
        Some(u64::from(max_entries).next_power_of_two() * BUCKET + HEADER)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
