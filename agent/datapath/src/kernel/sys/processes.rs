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

/// Has freed memory return to the kernel from now on. glibc raises the size that it keeps for itself to twice the
/// largest block that was ever freed, in each arena. Setting the size turns that off. Without it the agent only keeps
/// more memory, so a failure is none of its own.
pub fn keep_little_memory() {
    // SAFETY: takes numbers.
    #[cfg(target_env = "gnu")]
    unsafe {
        /// What glibc begins with, in bytes.
        const LEAST: libc::c_int = 128 << 10;
        libc::mallopt(libc::M_MMAP_THRESHOLD, LEAST);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LEAST);
    }
}

/// Returns freed memory to the kernel, where glibc keeps it and it counts as the agent's. Loading the programs parses
/// megabytes of BTF, for example.
pub fn trim_heap() {
    // SAFETY: takes a number.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
