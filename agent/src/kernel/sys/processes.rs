//! Memory of this process, and descriptors of others.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

/// A duplicate of another process's descriptor (pidfd_getfd(2), Linux 5.6).
pub fn descriptor_of(pid: i32, fd: u32) -> io::Result<OwnedFd> {
    let process = descriptor(|| {
        // SAFETY: takes numbers, and returns a new descriptor.
        unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }
    })?;
    descriptor(|| {
        // SAFETY: takes numbers, and returns a new descriptor.
        unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) }
    })
}

fn descriptor(call: impl FnOnce() -> libc::c_long) -> io::Result<OwnedFd> {
    match call() {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: a new descriptor, as above, without another owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    }
}

/// Returns freed memory to the kernel. Loading the programs parses megabytes of BTF, and glibc would keep
/// that memory, where it counts as the agent's.
pub fn trim_heap() {
    // SAFETY: takes a number.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
