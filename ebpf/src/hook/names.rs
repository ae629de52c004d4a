//! The names of a redirected connection's two sockets, as they are without the redirect. getpeername and
//! accept on the sidecar's socket return the application's address; getpeername and getsockname on the
//! application's socket return the dialed address and its own.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::{
    conn::{Role, SockRecord},
    target::Target,
};

use super::ALLOW;
use crate::{ctx::sock_addr::SockAddr, maps};

/// getpeername and accept on an IPv4 socket.
#[cgroup_sock_addr(getpeername4)]
pub fn st_getpeername4(ctx: SockAddrContext) -> i32 {
    getpeername(&SockAddr::<false> { inner: &ctx })
}

/// getpeername and accept on an IPv6 socket.
#[cgroup_sock_addr(getpeername6)]
pub fn st_getpeername6(ctx: SockAddrContext) -> i32 {
    getpeername(&SockAddr::<true> { inner: &ctx })
}

/// getsockname on an IPv4 socket.
#[cgroup_sock_addr(getsockname4)]
pub fn st_getsockname4(ctx: SockAddrContext) -> i32 {
    getsockname(&SockAddr::<false> { inner: &ctx })
}

/// getsockname on an IPv6 socket.
#[cgroup_sock_addr(getsockname6)]
pub fn st_getsockname6(ctx: SockAddrContext) -> i32 {
    getsockname(&SockAddr::<true> { inner: &ctx })
}

#[inline(always)]
fn getpeername<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    let Some(record) = redirected(ctx) else {
        return ALLOW;
    };
    if record.role == Role::Dialed as u16 {
        ctx.set_address(record.addr, record.port);
    } else if !record.source.is_unspecified() {
        ctx.set_address(record.source, ctx.port());
    }
    ALLOW
}

#[inline(always)]
fn getsockname<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    let Some(record) = redirected(ctx) else {
        return ALLOW;
    };
    if record.role == Role::Accepted as u16 {
        // As with iptables, which redirects there.
        let plain = Target::plain(record.addr.family(), record.capture_port);
        ctx.set_address(plain.addr, plain.port);
    } else if !record.source.is_unspecified() {
        ctx.set_address(record.source, ctx.port());
    }
    ALLOW
}

/// The record of a socket that belongs to a redirected connection.
#[inline(always)]
fn redirected<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<&'static SockRecord> {
    if !ctx.is_tcp() && !ctx.is_mptcp() {
        return None;
    }
    let record = maps::record(ctx.socket(), false)?;
    if record.role == Role::Accepted as u16 {
        return Some(record);
    }
    // The record of an earlier connect says nothing about a socket that was disconnected since.
    (record.role == Role::Dialed as u16 && ctx.peer_port() == record.target_port).then_some(record)
}
