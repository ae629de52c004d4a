//! The bpf(2) system call and the conversions that are shared by all its commands.

use std::{
    io, mem,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd};

/// Runs one bpf(2) command on a zeroed attribute union that `fill` completes.
pub(super) fn bpf(command: bpf_cmd, fill: impl FnOnce(&mut bpf_attr)) -> io::Result<i64> {
    bpf_read(command, fill, |_| {})
}

/// As [`bpf`], for commands that write their result into the union; `read` sees it afterwards, also when the command
/// failed.
pub(super) fn bpf_read(
    command: bpf_cmd,
    fill: impl FnOnce(&mut bpf_attr),
    read: impl FnOnce(&bpf_attr),
) -> io::Result<i64> {
    // SAFETY: the union is plain data; all zero is what the kernel expects of unused fields.
    let mut attr: bpf_attr = unsafe { mem::zeroed() };
    fill(&mut attr);
    // SAFETY: the kernel reads and writes at most the given size; pointers that callers put into
    // the union refer to buffers they keep borrowed until this returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            &raw mut attr,
            size_of::<bpf_attr>(),
        )
    };
    let failed = (result < 0).then(io::Error::last_os_error);
    read(&attr);
    failed.map_or(Ok(result), Err)
}

/// As [`bpf`], for commands that return a new file descriptor.
pub(super) fn bpf_fd(command: bpf_cmd, fill: impl FnOnce(&mut bpf_attr)) -> io::Result<OwnedFd> {
    let fd = bpf(command, fill)?;
    // SAFETY: the command succeeded, so this is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

pub(super) fn absent_is_false(result: io::Result<i64>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Names of maps and programs: at most 15 bytes and a NUL.
pub(super) fn object_name(name: &str) -> [std::ffi::c_char; 16] {
    let mut out = [0; 16];
    for (to, from) in out.iter_mut().zip(name.bytes().take(15)) {
        *to = from as std::ffi::c_char;
    }
    out
}
