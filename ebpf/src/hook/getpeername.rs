//! getpeername on the application's socket returns the address it dialed. The sidecar's accepted socket
//! already has the true peer address and is unchanged.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::conn::Role;

use super::ALLOW;
use crate::{ctx::sock_addr::SockAddr, maps};

/// getpeername on an IPv4 socket.
#[cgroup_sock_addr(getpeername4)]
pub fn st_getpeername4(ctx: SockAddrContext) -> i32 {
    getpeername(&SockAddr::<false> { inner: &ctx })
}

/// getpeername on an IPv6 socket.
#[cgroup_sock_addr(getpeername6)]
pub fn st_getpeername6(ctx: SockAddrContext) -> i32 {
    getpeername(&SockAddr::<true> { inner: &ctx })
}

#[inline(always)]
fn getpeername<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    if (ctx.is_tcp() || ctx.is_mptcp())
        && let Some(record) = maps::record(ctx.socket(), false)
        && record.role == Role::Dialed as u16
    {
        ctx.set_address(record.addr, record.port);
    }
    ALLOW
}
