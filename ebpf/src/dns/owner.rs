//! The owner of a UDP socket. There is no helper that makes a typed pointer of it, as for TCP: the kernel's memory is
//! read by address.

use aya_ebpf::helpers::bpf_probe_read_kernel;
use sidetrack_common::decide::Owner;
use sidetrack_ebpf::ctx::{owner::Offsets, sock_addr::SockAddr};

/// The process that created the socket, as netfilter's owner match sees it.
#[inline(always)]
pub fn owner<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Owner {
    read(ctx).unwrap_or(Owner::UNKNOWN)
}

#[inline(always)]
fn read<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<Owner> {
    let sk = ctx.socket();
    // The verifier knows what a pointer from the context leads to, and allows no other offset than those of its fields.
    // What a helper has copied is a number.
    let sk: usize = load(core::ptr::from_ref(&sk) as usize)?;
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

#[inline(always)]
fn load<T>(at: usize) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(at as *const T) }.ok()
}
