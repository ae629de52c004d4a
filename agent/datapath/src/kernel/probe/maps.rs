//! Creates small maps to find out which kinds the kernel has.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use aya_obj::generated::bpf_map_type;

use crate::kernel::sys;

pub(super) fn map(map_type: bpf_map_type, value_size: u32, flags: u32) -> io::Result<OwnedFd> {
    sys::map_create(map_type, "st_probe", 8, value_size, 4, flags)
}

/// A map of the oldest kind.
pub(super) fn smallest() -> io::Result<OwnedFd> {
    sys::map_create(bpf_map_type::BPF_MAP_TYPE_ARRAY, "st_probe", 4, 4, 1, 0)
}

pub(super) fn ring_buffer() -> io::Result<OwnedFd> {
    // The size has to be a multiple of the kernel's page, which is up to 64 KiB on arm64.
    const LARGEST_PAGE: u32 = 65536;
    let ring = bpf_map_type::BPF_MAP_TYPE_RINGBUF;
    sys::map_create(ring, "st_probe", 0, 0, LARGEST_PAGE, 0)
}

pub(super) fn storage_map() -> io::Result<OwnedFd> {
    const MAGIC_VERSION_FLAGS: u32 = 0x0001_eb9f;
    const HEADER: u32 = 24;
    const TYPES: u32 = 16;
    const KIND_INT: u32 = 1 << 24;
    // A header, one 32-bit integer type named "i", and its name.
    let words = [
        MAGIC_VERSION_FLAGS,
        HEADER,
        0,
        TYPES,
        TYPES,
        3,
        1,
        KIND_INT,
        4,
        32,
    ];
    let mut btf: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    btf.extend(b"\0i\0");
    sys::storage_map_create("st_probe", sys::btf_load(&btf)?.as_fd(), 1)
}
