//! The owner of a UDP socket. There is no helper that makes a typed pointer of it, as for TCP: the kernel's memory is
//! read by address.

use sidetrack_common::decide::Owner;
use sidetrack_ebpf::ctx::{
    number::{load, of_pointer},
    owner::Offsets,
    sock_addr::SockAddr,
};

/// The process that created the socket, as netfilter's owner match sees it.
#[inline(always)]
pub fn owner<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Owner {
    read(ctx).unwrap_or(Owner::UNKNOWN)
}

#[inline(always)]
fn read<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<Owner> {
    let sk = of_pointer(ctx.socket())?;
    let socket: usize = load(sk + Offsets::sock_socket())?;
    if socket == 0 {
        return None;
    }
    let file: usize = load(socket + Offsets::socket_file())?;
    if file == 0 {
        return None;
    }
    let cred: usize = load(file + Offsets::file_cred())?;
    Some(Owner {
        uid: load(cred + Offsets::cred_fsuid())?,
        gid: load(cred + Offsets::cred_fsgid())?,
    })
}
