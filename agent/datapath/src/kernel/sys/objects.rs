//! What links, maps and programs have in common: pins and descriptions.

use std::{
    ffi::CString,
    io, mem,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{BPF_F_RDONLY, bpf_cmd};

use super::call::{bpf, bpf_fd, raw};

/// Pins an object in a bpffs; fails if the name exists.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    bpf(bpf_cmd::BPF_OBJ_PIN, |attr| {
        attr.__bindgen_anon_4.bpf_fd = raw(object);
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    })
    .map(drop)
}

/// Opens a pinned object.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    bpf_fd(bpf_cmd::BPF_OBJ_GET, |attr| {
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    })
}

/// Opens a pinned map whose rows will only be read, also in a file system that is read-only.
pub fn open_pinned_map_to_read(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    bpf_fd(bpf_cmd::BPF_OBJ_GET, |attr| {
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
        attr.__bindgen_anon_4.file_flags = BPF_F_RDONLY;
    })
}

/// Describes an object.
///
/// # Safety
/// `T` must be one of the `bpf_*_info` structs: integers only, so that all zero and everything the kernel
/// writes are valid.
pub(super) unsafe fn info<T>(object: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: as the caller promises; all zero requests no optional buffers.
    let mut info: T = unsafe { mem::zeroed() };
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, |attr| {
        attr.info.bpf_fd = raw(object);
        attr.info.info = (&raw mut info) as u64;
        attr.info.info_len = size_of::<T>() as u32;
    })?;
    Ok(info)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}
