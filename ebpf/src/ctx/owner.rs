//! The owner of a socket, read the way netfilter's owner match reads it.
//!
//! `xt_owner` compares the fsuid and fsgid in `sk->sk_socket->file->f_cred`, the credentials of
//! the process that opened the socket. Reading the same field at connect time is exact for every
//! socket, also for those opened before the programs were loaded. Sockets that never connect cost
//! nothing.

use aya_ebpf::bindings::bpf_sock;
use sidetrack_common::decide::Owner;

use super::{
    number, offsets,
    typed::{Typed, follow, load, tcp_sock},
};

offsets! {
    OFFSET_SOCK_SOCKET,
    OFFSET_SOCKET_FILE,
    OFFSET_FILE_CRED,
    OFFSET_CRED_FSUID,
    OFFSET_CRED_FSGID,
}

/// The owner of a TCP socket; unknown for sockets without a file, as netfilter sees those.
#[inline(always)]
pub fn owner(sk: *mut bpf_sock) -> Owner {
    let Some(tcp) = tcp_sock(sk) else {
        return Owner::UNKNOWN;
    };
    let file: Typed = follow(follow(tcp, &OFFSET_SOCK_SOCKET), &OFFSET_SOCKET_FILE);
    if file.is_null() {
        return Owner::UNKNOWN;
    }
    let cred = follow(file, &OFFSET_FILE_CRED);
    Owner {
        uid: load(cred, &OFFSET_CRED_FSUID),
        gid: load(cred, &OFFSET_CRED_FSGID),
    }
}

/// The same of a UDP socket, of which no helper makes a typed pointer: the kernel's memory is read by address.
#[inline(always)]
pub fn of_datagram(sk: *mut bpf_sock) -> Owner {
    by_address(sk).unwrap_or(Owner::UNKNOWN)
}

#[inline(always)]
fn by_address(sk: *mut bpf_sock) -> Option<Owner> {
    let sk = number::of_pointer(sk.cast())?;
    let socket: usize = number::load_at(sk, &OFFSET_SOCK_SOCKET)?;
    if socket == 0 {
        return None;
    }
    let file: usize = number::load_at(socket, &OFFSET_SOCKET_FILE)?;
    if file == 0 {
        return None;
    }
    let cred: usize = number::load_at(file, &OFFSET_FILE_CRED)?;
    Some(Owner {
        uid: number::load_at(cred, &OFFSET_CRED_FSUID)?,
        gid: number::load_at(cred, &OFFSET_CRED_FSGID)?,
    })
}
