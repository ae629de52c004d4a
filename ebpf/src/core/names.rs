//! The names of a redirected connection's two sockets, as they are without the redirect. getpeername and
//! accept on the sidecar's socket return the application's address; getpeername and getsockname on the
//! application's socket return the dialed address and its own.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use sidetrack_common::{
    addr::Addr,
    conn::{DestinationKey, Meaning},
    target::{Target, is_dedicated},
};

use super::ALLOW;
use crate::maps;
use sidetrack_ebpf::ctx::sock_addr::SockAddr;

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
    match names(ctx) {
        Some(Names::Application { dialed, port, .. }) => ctx.set_address(dialed, port),
        Some(Names::Sidecar { source, .. }) if !source.is_unspecified() => {
            ctx.set_address(source, ctx.port());
        }
        _ => {}
    }
    ALLOW
}

#[inline(always)]
fn getsockname<const V6: bool>(ctx: &SockAddr<'_, V6>) -> i32 {
    match names(ctx) {
        Some(Names::Application { source, .. }) if !source.is_unspecified() => {
            ctx.set_address(source, ctx.port());
        }
        Some(Names::Sidecar { plain, .. }) => ctx.set_address(plain.addr, plain.port),
        _ => {}
    }
    ALLOW
}

/// What the names of a socket of a redirected connection are without the redirect. An unspecified source is
/// the one that the socket has.
enum Names {
    /// The socket that connected.
    Application {
        dialed: Addr,
        port: u16,
        source: Addr,
    },
    /// The socket that was accepted. With iptables connections are redirected to the plain target.
    Sidecar { source: Addr, plain: Target },
}

#[inline(always)]
fn names<const V6: bool>(ctx: &SockAddr<'_, V6>) -> Option<Names> {
    let (own, peer) = (ctx.source(), ctx.peer());
    // Of UDP sockets those that are connected to the sidecar have other names than their own.
    let is_query = ctx.is_udp() && (is_plain(peer) || is_dedicated(peer));
    if !(ctx.is_tcp() || ctx.is_mptcp() || is_query) {
        return None;
    }
    let (own_port, peer_port) = (ctx.bound_port(), ctx.peer_port());
    if is_dedicated(peer) {
        let target = Target {
            addr: peer,
            port: peer_port,
        };
        let row = maps::destination(&DestinationKey::new(ctx.netns(), target))?;
        return Some(Names::Application {
            dialed: row.dialed,
            port: row.dialed_port,
            source: instead_of_loopback(own, row.source),
        });
    }
    if is_dedicated(own) {
        let target = Target {
            addr: own,
            port: own_port,
        };
        let row = maps::destination(&DestinationKey::new(ctx.netns(), target))?;
        return Some(Names::Sidecar {
            source: instead_of_loopback(peer, row.source),
            plain: Target::plain(own.family(), own_port),
        });
    }
    let record = maps::record(ctx.socket())?;
    match record.meaning(own_port, peer_port) {
        Meaning::Sidecar => Some(Names::Sidecar {
            source: record.source,
            plain: Target::plain(record.addr.family(), record.capture_port),
        }),
        Meaning::Application => Some(Names::Application {
            dialed: record.addr,
            port: record.port,
            source: record.source,
        }),
        Meaning::Stale | Meaning::Direct | Meaning::Translated | Meaning::Assigned => None,
    }
}

/// Whether an address is that of a plain target.
#[inline(always)]
fn is_plain(addr: Addr) -> bool {
    addr.is(Addr::LOOPBACK_V4) || addr.is(Addr::LOOPBACK_V6)
}

/// The row's source, for a socket that the kernel gave a loopback address. A bound one has its own.
#[inline(always)]
fn instead_of_loopback(addr: Addr, source: Addr) -> Addr {
    if addr.is_loopback() {
        source
    } else {
        Addr::UNSPECIFIED
    }
}
