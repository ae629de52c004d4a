//! The owner of a socket, read the way netfilter's owner match reads it.
//!
//! `xt_owner` compares the fsuid and fsgid in `sk->sk_socket->file->f_cred`, the credentials of
//! the process that opened the socket. Reading the same field at connect time is exact for every
//! socket, also for those opened before the programs were loaded. Sockets that never connect cost
//! nothing.

use aya_ebpf::{Global, bindings::bpf_sock};
use sidetrack_common::{decide::Owner, policy::NO_ID};

use super::typed::{Typed, follow, load, tcp_sock};

/// Offset of `sk_socket` in `struct sock`; all of them are set by the loader from the kernel's BTF.
#[unsafe(no_mangle)]
static OFFSET_SOCK_SOCKET: Global<u32> = Global::new(0);
/// Offset of `file` in `struct socket`.
#[unsafe(no_mangle)]
static OFFSET_SOCKET_FILE: Global<u32> = Global::new(0);
/// Offset of `f_cred` in `struct file`.
#[unsafe(no_mangle)]
static OFFSET_FILE_CRED: Global<u32> = Global::new(0);
/// Offset of `fsuid` in `struct cred`.
#[unsafe(no_mangle)]
static OFFSET_CRED_FSUID: Global<u32> = Global::new(0);
/// Offset of `fsgid` in `struct cred`.
#[unsafe(no_mangle)]
static OFFSET_CRED_FSGID: Global<u32> = Global::new(0);

/// Where to find the owner from a `struct sock` on.
pub struct Offsets;

impl Offsets {
    /// `sk_socket` in `struct sock`.
    #[inline(always)]
    pub fn sock_socket() -> usize {
        OFFSET_SOCK_SOCKET.load() as usize
    }

    /// `file` in `struct socket`.
    #[inline(always)]
    pub fn socket_file() -> usize {
        OFFSET_SOCKET_FILE.load() as usize
    }

    /// `f_cred` in `struct file`.
    #[inline(always)]
    pub fn file_cred() -> usize {
        OFFSET_FILE_CRED.load() as usize
    }

    /// `fsuid` in `struct cred`.
    #[inline(always)]
    pub fn cred_fsuid() -> usize {
        OFFSET_CRED_FSUID.load() as usize
    }

    /// `fsgid` in `struct cred`.
    #[inline(always)]
    pub fn cred_fsgid() -> usize {
        OFFSET_CRED_FSGID.load() as usize
    }
}

/// The owner of a TCP socket; [`NO_ID`] for sockets without a file, as netfilter sees those.
#[inline(always)]
pub fn owner(sk: *mut bpf_sock) -> Owner {
    let Some(tcp) = tcp_sock(sk) else {
        return Owner {
            uid: NO_ID,
            gid: NO_ID,
        };
    };
    let file: Typed = follow(follow(tcp, &OFFSET_SOCK_SOCKET), &OFFSET_SOCKET_FILE);
    if file.is_null() {
        return Owner {
            uid: NO_ID,
            gid: NO_ID,
        };
    }
    let cred = follow(file, &OFFSET_FILE_CRED);
    Owner {
        uid: load(cred, &OFFSET_CRED_FSUID),
        gid: load(cred, &OFFSET_CRED_FSGID),
    }
}
