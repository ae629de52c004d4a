//! Namespaces: their kind and owner, and the socket option that carries a network namespace's cookie.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};

/// The `CLONE_NEW*` flag of a namespace's kind (ioctl_ns(2), Linux 4.11).
pub fn namespace_type(namespace: BorrowedFd<'_>) -> io::Result<i32> {
    const NS_GET_NSTYPE: libc::Ioctl = 0xb703;
    // SAFETY: the request takes no argument.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE) } {
        -1 => Err(io::Error::last_os_error()),
        kind => Ok(kind),
    }
}

/// The user namespace that owns a namespace (ioctl_ns(2), Linux 4.9); EPERM if that is not below the caller's own.
/// The owner of a user namespace is its parent.
pub fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const NS_GET_USERNS: libc::Ioctl = 0xb701;
    // SAFETY: the request takes no argument and returns a new descriptor.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above, it has no other owner.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// The cookie of a socket's network namespace: `SO_NETNS_COOKIE` (Linux 5.14).
pub fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    socket_option_u64(socket, SO_NETNS_COOKIE)
}

/// An integer socket option that std and nix have no name for.
pub fn socket_option_u64(socket: BorrowedFd<'_>, option: i32) -> io::Result<u64> {
    let mut value = 0_u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: a local of the given length.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    if failed == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
